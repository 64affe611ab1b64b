"""Run folders: writes, checks and reads back their files."""
