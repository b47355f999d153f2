"""Backup and restore: copies that open as roots, and repair of copies that are incomplete."""
