"""One module per command of `fleetgrad`; each parses, calls the library and prints."""
