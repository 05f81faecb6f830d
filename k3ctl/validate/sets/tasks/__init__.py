"""Task files of the harness, and the functions that they name. They run in the harness."""
