"""Backup and restore: copies of tables that other roots open, and copies that are not whole."""
