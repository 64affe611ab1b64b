"""Types and constraints of keys that pre-training does not have."""

from typing import Annotated, Any

from gpt1_jax.config.checks import (
    ALL,
    MILESTONES,
    Check,
    Commas,
    Place,
    check_step,
    is_device,
    require,
)


def ends_in(*endings: str, optional: bool = False, device: bool = False) -> Check:
    """Makes a check that refuses a file's name with another ending.

    Args:
      endings: such as ".csv".
      optional: whether the name may be empty.
      device: whether it may name a device.
    """

    def check(key: str, value: str) -> None:
        allowed = (optional and not value) or (device and is_device(value))
        require(
            allowed or value.endswith(endings),
            f"{key}={value!r} must end in {' or '.join(endings)}.",
        )

    return check


def different(key: str, value: tuple[Any, ...]) -> None:
    """Refuses empty names and repeated names."""
    require(
        all(value) and len(set(value)) == len(value),
        f"{key}={value} must be different names, none of them empty.",
    )


def not_empty(key: str, value: tuple[Any, ...]) -> None:
    """Refuses an empty tuple."""
    require(bool(value), f"{key} is empty; name one or more.")


def check_steps(key: str, step: str) -> None:
    """Refuses text that names no saved step, or steps, of a run."""
    require(step != "kept", f"{key}='kept' is now {key}={MILESTONES!r}.")
    check_step(key, step, ALL, MILESTONES)


Names = Annotated[tuple[str, ...], Commas()]
OptionalRunFolder = Annotated[str, Place(model=True)]
RunFolders = Annotated[str, Place(several=True, model=True)]
Steps = Annotated[str, check_steps]
