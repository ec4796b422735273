"""The doctor: named checks, each a row with what was found, what was expected, a verdict and the way to mend it.

A check takes plain values, paths or parsed records and never raises for a bad artefact: the fault is its row.
`run_doctor` makes the whole round; `catalogue.py` lists the failures it knows.
"""

from eagle3lab.analysis.doctor.catalogue import CATALOGUE, causes_excluded, causes_shown
from eagle3lab.analysis.doctor.draft import check_contexts, check_draft_vocabulary, find_drafter
from eagle3lab.analysis.doctor.examine import Subject, run_doctor
from eagle3lab.analysis.doctor.machine import (
    check_cores,
    check_disk,
    check_hours,
    check_kernelspec,
    check_leftover_servers,
    check_leftovers,
    check_python,
    check_versions,
    free_disk,
    processes,
    usable_cores,
)
from eagle3lab.analysis.doctor.report import Check, as_json, as_text, exit_code, faults, read_report, verdict_counts
from eagle3lab.analysis.doctor.target import (
    check_aux_layers,
    check_chat_template,
    check_end_token,
    check_files,
    check_finite,
    check_target,
    find_target,
)

__all__ = [
    "CATALOGUE",
    "Check",
    "Subject",
    "as_json",
    "as_text",
    "causes_excluded",
    "causes_shown",
    "check_aux_layers",
    "check_chat_template",
    "check_contexts",
    "check_cores",
    "check_disk",
    "check_draft_vocabulary",
    "check_end_token",
    "check_files",
    "check_finite",
    "check_hours",
    "check_kernelspec",
    "check_leftover_servers",
    "check_leftovers",
    "check_python",
    "check_target",
    "check_versions",
    "exit_code",
    "faults",
    "find_drafter",
    "find_target",
    "free_disk",
    "processes",
    "read_report",
    "run_doctor",
    "usable_cores",
    "verdict_counts",
]
