"""The report job: the results of runs, as a page."""

import datetime

from gpt1_jax.config.report import ReportConfig
from gpt1_jax.data.progress import show_line
from gpt1_jax.report import page
from gpt1_jax.report.runs import read_runs
from gpt1_jax.report.sections import make_report
from gpt1_jax.report.studies import find_studies
from gpt1_jax.runs import folder as run_folder


def run(config: ReportConfig, workdir: str) -> None:
    """Writes a report on run folders, replacing an earlier one; uses no device.

    Args:
      config: the folders.
      workdir: for `report.html`, `report.md` and `plots/`.

    Raises:
      FileExistsError: if `workdir` is a run folder.
      FileNotFoundError: if a folder is missing, or holds nothing for a report.
      UserError: if there is no such study.
      ValueError: naming the file of a run that is damaged.
    """
    folder = run_folder.locate_run(workdir)
    studies = find_studies(config.studies)
    page.check_folder(folder)
    today = datetime.date.today()
    date = f"{today.day} {today:%B %Y}"
    runs = read_runs(config.folders, studies)
    document = make_report(runs, config.title, date, config.figure)
    page.write_report(document, folder, [each.picture for each in runs.studies])
    show_line(
        f"Report: {folder / page.HTML_FILE}\nMarkdown: {folder / page.MARKDOWN_FILE}"
    )
