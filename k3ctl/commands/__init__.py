"""One file per verb: parse, call the core, return a CommandResult."""
