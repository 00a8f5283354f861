"""The registry of methods: identifier, formula text, constants with their sources. Pure."""
