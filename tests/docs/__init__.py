"""The documentation: its site, its commands, its examples."""
