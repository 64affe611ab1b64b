"""Devices and processes: the mesh, shardings, and who writes."""
