"""Makes a run folder of parameters that were not trained in one."""

from gpt1_jax.config.sections import CheckpointConfig, JobConfig
from gpt1_jax.data.files import whole_folder
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.model.language_model import Params
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoints import Checkpoints, refuse_name
from gpt1_jax.runs.outputs import refuse_used
from gpt1_jax.runs.resume import Identity


def save_params(
    workdir: str, params: Params, tokenizer: Tokenizer, config: JobConfig, step: int = 0
) -> None:
    """Makes a run folder that `open_run` and every job accept.

    A folder that cannot be made whole is not made at all.

    Args:
      workdir: the folder to make, local or gs://.
      params: the parameters, named as in the job of the configuration.
      tokenizer: their tokenizer.
      config: the resolved configuration, with the model's sizes.
      step: the step to save them as.

    Raises:
      FileExistsError: if the folder holds files of a run; it is left as it is.
      OSError: if the disk has no room.
    """
    target = run_folder.locate_run(workdir)
    refuse_used(target, run_folder.NAMES)
    refuse_name(target, to_save=True)
    identity = Identity(config.to_dict(), tokenizer.digest)
    with whole_folder(target, beside_others=True) as folder:
        run_folder.write_config_and_tokenizer(folder, config, tokenizer)
        checkpoints = Checkpoints(folder, CheckpointConfig(1, 2, 0))
        try:
            checkpoints.save(step, {"params": params}, identity.metadata(step))
        finally:
            checkpoints.close()
