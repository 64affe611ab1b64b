"""The command `python -m gpt1_jax.eval_harness`, and its model class.

The implementation is in `studies/eval_harness`.
"""

import sys

from gpt1_jax.errors import MissingPackage

try:
    from gpt1_jax.studies.eval_harness.model import RunLM, run
except MissingPackage as missing:
    if __name__ == "__main__":
        sys.exit(f"gpt1_jax: error: {missing}")
    raise

__all__ = ["RunLM", "run"]

if __name__ == "__main__":
    run()
