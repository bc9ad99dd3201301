"""The tiers of tests: which of them `make test`, `make test-packages` and `make nightly` run.

- `make test`: the core's tests, and those of every package that are marked `contract`.
- `make test-packages`: every test of the packages, and of the benchmarks and examples.
- `make nightly`: all of them, and what is marked `slow`: whole tasks on real models, clusters, the
  report in a browser, faults. `NIGHTLY`, `CLUSTER` and `SIBLINGS` mark folders, fixtures and
  architectures.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# As in layerscope/__init__.py, for tests that import torch first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The packages' own code comes first, also in an environment where they are not installed.
sys.path[:0] = map(str, Path(__file__).parent.glob("packages/layerscope-*/src"))

OUTSIDE_THE_CORE = ("packages/", "tests/benchmarks/", "tests/examples/")
NIGHTLY = (
    "tests/browser/",
    "tests/faults/",
    # real weights, simulations and trainings
    "tests/exporting/test_real.py",
    "tests/improving/test_train.py::test_a_student_that_is_no_better_stays_home",
    "tests/improving/test_train.py::test_a_training_that_finds_nothing_better_stops_early",
    "tests/core/test_picking.py::test_equal_candidates",
    "tests/metrics/test_intervals.py::test_dimes_interval_covers",
    "tests/metrics/test_intervals.py::test_spread",
    "tests/probing/test_training.py::test_classes_are_found_in_the_layer_that_holds_them[mean",
    "tests/choose/labels/test_decide.py::test_labels_that_mean_nothing_leave_the_reference[judged",
    "tests/choose/labels/test_decide.py::test_labels_that_mean_nothing_leave_the_reference[scored",
    "tests/choose/labels/test_decide.py::test_the_gain_is_not_that_of_a_lucky_winner[judged",
    "tests/choose/labels/test_decide.py::test_the_gain_is_not_that_of_a_lucky_winner[scored",
    # further sizes, kinds and formats of what a test of `make test` shows
    "tests/docs/test_site.py::test_a_script_draws_into_the_given_folder",
    "tests/evaluation/test_budget.py::test_a_grid_that_does_not_fit",
    "tests/evaluation/test_evaluate.py::test_damaged_results_are_told[flip",
    "tests/evaluation/test_evaluate.py::test_float16_changes_scores",
    "tests/evaluation/test_loop.py::test_of_tasks_that_are_encoded_together",
    "tests/evaluation/test_loop.py::test_tasks_side_by_side",
    "tests/exporting/test_folder.py::test_poolings[max",
    "tests/exporting/test_folder.py::test_poolings[wmean",
    "tests/exporting/test_onnx.py::test_graphs_equal_states_read_by_hand[bert",
    "tests/exporting/test_onnx.py::test_graphs_equal_states_read_by_hand[gpt_neox",
    "tests/maps/test_layer_map.py::test_even_unrelated_layers_fit_into_a_page[2000",
    "tests/probing/test_probe.py::test_damaged_scratch_files_are_computed_again[kept.json",
    "tests/probing/test_probe.py::test_damaged_scratch_files_are_computed_again[mean",
    "tests/report/test_write.py::test_a_large_report_stays_small",
    "tests/store/test_resume.py::test_a_damaged_shard_is_computed_again[000001.values",
    # improvements that differ in one setting
    "tests/cli/test_improve_command.py::test_a_language_that_the_judge_does_not_know",
    "tests/cli/test_improve_command.py::test_improve_a_search",
    "tests/cli/test_improve_command.py::test_texts_of_one_word_are_answered",
    "tests/improving/test_fitting.py::test_a_centering_that_was_stopped",
    "tests/improving/test_fitting.py::test_the_time_that_the_encoder_takes_counts",
    "tests/improving/test_heads.py::test_a_budget_may_be_more_than_today",
    "tests/improving/test_heads.py::test_a_fit_that_was_stopped",
    "tests/improving/test_heads.py::test_a_light_model_without_a_head_says_why",
    "tests/improving/test_heads.py::test_a_pattern_that_begins_with_a_line_end",
    "tests/improving/test_heads.py::test_labels",
    "tests/improving/test_improve.py::test_an_encoder_or_labels_judge_texts_without_words",
    "tests/improving/test_improve.py::test_labels_judge_alone_or_beside_an_encoder",
    "tests/improving/test_interrupted.py::test_a_run_that_is_stopped_while_it_writes",
    "tests/improving/test_retrieving.py::test_a_gain_that_was_let_through",
    "tests/improving/test_retrieving.py::test_both_sides_are_named",
    "tests/improving/test_retrieving.py::test_the_folder_has_prompts_by_sentence_transformers_names[none",
)
SIBLINGS = {
    "arcee", "camembert", "cwm", "distilbert", "electra", "ernie4_5", "eurobert", "falcon",
    "falcon_mamba", "gemma", "gemma2", "glm", "gpt_neox_sequential", "helium", "hunyuan_v1_dense",
    "mamba2", "ministral", "mistral", "olmo", "opt", "phi", "phi3", "qwen2", "qwen3", "roberta",
    "seed_oss", "smollm3", "starcoder2", "xlm_roberta",
}  # fmt: skip
"""Architectures that differ little from one that `make test` has."""
CLUSTER = "cluster"  # the fixture of a Ray cluster
ALSO_IN_TEST = (
    "tests/browser/test_map.py::test_hostile_texts_and_names_are_shown_as_text",
    "tests/browser/test_page.py::test_renders_without_errors_or_requests",
    "tests/browser/test_page.py::test_text_stays_text",
    "tests/engines/test_ray.py::test_an_evaluation_has_the_same_scores",
    "tests/examples/test_demo.py",
    "tests/exporting/test_real.py::test_templates_on_real_sentences[minilm-l6-one-word",
    "tests/faults/test_killed.py::test_killed_runs_end_as_if_nothing_had_been",
)
"""Tests that stay in `make test`, although their folder or fixture belongs to a later tier."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that belong to the packages or to the nightly run."""
    for item in items:
        if item.nodeid.startswith(ALSO_IN_TEST):
            continue
        outside = item.nodeid.startswith(OUTSIDE_THE_CORE)
        if outside:
            item.add_marker("package")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        family = parameters.get("family", parameters.get("name"))
        if (
            item.nodeid.startswith(NIGHTLY)
            or CLUSTER in getattr(item, "fixturenames", ())
            or (not outside and isinstance(family, str) and family in SIBLINGS)
        ):
            item.add_marker("slow")
