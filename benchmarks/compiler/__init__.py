"""Our programs, compiled for accelerators that are not there."""
