"""The commands: parsing and messages. No other room imports it."""
