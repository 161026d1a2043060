"""Entries: sums and replacements at few places of long vectors."""
