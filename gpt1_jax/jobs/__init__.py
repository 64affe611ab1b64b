"""The jobs: `run(config, workdir)`, one file for each file of `configs/`."""
