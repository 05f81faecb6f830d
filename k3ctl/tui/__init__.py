"""The live screen (Textual). Importing this package is cheap; ``k3ctl.tui.app`` brings the toolkit."""
