"""Processes, devices and how arrays are laid out on them."""
