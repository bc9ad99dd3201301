"""`layerscope profile`: what it prints and writes, how it ends, and what it says about mistakes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest

from layerscope.profiling import Profile, job
from tests.cli.support import Cli, assert_refused
from tests.forking import run_python

FAST = ("--max-length", "24", "--views", "2", "--option", "permutations=2", "--device", "cpu")
ENTROPY = ("--metrics", "prompt_entropy", "--max-length", "24")
ROOT = Path(__file__).parents[2]


def test_json_has_the_documented_keys(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    ended = cli("profile", model_folder, "--data", data, "--out", "run", "--json", *FAST)
    assert ended.code == 0, ended.err
    assert ended.err == ""
    summary = json.loads(ended.out)
    keys = {
        "model",
        "layers",
        "prompts",
        "final_norm",
        "valley",
        "metrics",
        "undefined",
        "warnings",
        "run",
    }
    assert summary.keys() == keys
    assert (summary["model"], summary["layers"], summary["prompts"], summary["final_norm"]) == (
        "tiny-llama",
        3,
        10,
        "applied",
    )
    assert summary["metrics"]["prompt_entropy"].keys() == {"lowest", "highest", "last"}
    assert summary["run"] == "run"
    low = summary["metrics"]["dime"]["lowest"]
    curve = Profile.load(tmp_path / "run").curve("dime")
    assert low["value"] == pytest.approx(curve["value"].min())
    assert low["layer"] == curve.loc[curve["value"].idxmin(), "layer"]


def test_tables_for_people_and_files(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    ended = cli("profile", model_folder, "--data", data, *FAST, "--final-norm", "raw")
    assert ended.code == 0, ended.err
    assert "tiny-llama" in ended.out
    assert "final_norm raw" in ended.out
    assert "Written to runs/tiny-llama--texts.txt--raw: profile.csv" in ended.err
    folder = tmp_path / "runs" / "tiny-llama--texts.txt--raw"
    pd.testing.assert_frame_equal(
        pd.read_csv(folder / "profile.csv"),
        pd.read_parquet(folder / "profile.parquet"),
        check_exact=True,
    )


def test_the_default_folder_says_the_final_norm(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    assert cli("profile", model_folder, "--data", data, *ENTROPY, "--final-norm", "hf").code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny-llama--texts.txt--hf"]


def test_options_reach_the_run(cli: Cli, model_folder: Path, data: Path, tmp_path: Path) -> None:
    options = [
        "--alpha",
        "inf",
        "--rows",
        "unit",
        "--option",
        "seed=7",
        "--limit",
        "5",
        "--sites",
        "embed, block.1,block.*.attn",
    ]
    options += ["--model-option", "dtype=bfloat16", "--engine", "local:batch_size=2"]
    generic = ("--model-option", "family=generic")
    assert_refused(
        cli("profile", model_folder, "-d", data, *ENTROPY, *options, *generic),
        "does not say where",
    )
    ended = cli(
        "profile",
        model_folder,
        "-d",
        data,
        *ENTROPY,
        *options,
        "--model-option",
        "family=llama",
        "-o",
        "run",
    )
    assert ended.code == 0, ended.err
    run = Profile.load(tmp_path / "run")
    conventions = run.manifest["conventions"]
    assert conventions["metrics"]["alpha"] == "inf"
    assert (conventions["metrics"]["rows"], conventions["seed"], conventions["views"]) == (
        "unit",
        7,
        0,
    )
    assert run.manifest["counts"]["prompts"] == 5
    assert run.manifest["model"]["dtype"] == "bfloat16"
    expected = ["embed", "block.0.attn", "block.1.attn", "block.1", "block.2.attn"]
    assert run.table["site"].drop_duplicates().tolist() == expected


def test_the_same_command_again_returns_at_once(
    cli: Cli, model_folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("profile", model_folder, "-d", data, *ENTROPY, "-o", "run", "--json")
    first = cli(*words)
    assert first.code == 0, first.err
    monkeypatch.setattr(job, "run_profile", lambda *_, **__: pytest.fail("measured again"))
    assert cli(*words) == first
    assert cli(*words, "--engine", "local:batch_size=3") == first  # these decide no number
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        cli(*words, "--overwrite")
    assert_refused(
        cli(*words, "--option", "seed=1"), "run holds another run", "seed: 0 there, 1 here"
    )


def test_another_run_in_the_folder_is_refused(cli: Cli, model_folder: Path, data: Path) -> None:
    words = ("profile", model_folder, "-d", data, *ENTROPY, "-o", "run")
    assert cli(*words).code == 0
    assert_refused(
        cli(*words, "--alpha", "2"),
        "run holds another run",
        "profile.options.alpha: 1.0 there, 2.0 here",
        "overwrite",
    )
    assert cli(*words, "--alpha", "2", "--overwrite").code == 0


@pytest.mark.parametrize(
    ("option", "value", "phrases"),
    [
        (
            "--metrics",
            "promt_entropy",
            ["unknown metric 'promt_entropy'", "Did you mean 'prompt_entropy'"],
        ),
        ("--metrics", ",", ["comma-separated list"]),
        ("--sites", "blok.*", ["unknown site 'blok.*'", "Did you mean 'block.*'"]),
        ("--sites", "block.9", ["this model has 3 blocks, block.0 to block.2"]),
        ("--model-option", "family=lama", ["unknown model family 'lama'", "Did you mean 'llama'"]),
        ("--final-norm", "row", ["unknown final_norm 'row'", "Did you mean 'raw'"]),
        ("--model-option", "dtype=bfloat", ["unknown dtype 'bfloat'", "Did you mean 'bfloat16'"]),
        ("--device", "cdua", ["unknown device 'cdua'", "Did you mean 'cuda'"]),
        ("--option", "augmenter=buildin", ["'buildin'", "Did you mean 'builtin'"]),
        ("--rows", "centred-unit", ["unknown rows 'centred-unit'", "Did you mean 'centered-unit'"]),
        ("--alpha", "-1", ["alpha must be a number >= 0"]),
        ("--views", "17", ["views must be 2 to 16, not 17"]),
        ("--limit", "0", ["limit is 0"]),
        ("--max-length", "0", ["max_length must be at least 1"]),
        ("--option", "seed=-3", ["seed must be 0 or more"]),
        ("--engine", "local:batch_size=0", ["batch_size must be at least 1"]),
        ("--column", "text", ["column"]),
        ("--data", "leee", ["unknown corpus 'leee'", "Did you mean 'lee'"]),
        ("--data", "no/such/file.txt", ["no file 'no/such/file.txt'"]),
        ("--model-option", "adapters=no/such/adapter/folder", ["no/such/adapter/folder"]),
    ],
)
def test_mistakes_are_one_line(
    cli: Cli, model_folder: Path, data: Path, option: str, value: str, phrases: list[str]
) -> None:
    assert_refused(
        cli(
            "profile",
            model_folder,
            "--data",
            data,
            "--max-length",
            "24",
            option,
            value,
            "--out",
            "run",
        ),
        *phrases,
    )
    assert not Path("run/profile.parquet").exists()


def test_unknown_models(cli: Cli, data: Path) -> None:
    assert_refused(
        cli("profile", "smolm2-135m", "-d", data),
        "unknown model 'smolm2-135m'",
        "Did you mean 'smollm2-135m'",
    )
    assert_refused(cli("profile", "./no/folder", "-d", data), "no such file or folder")
    assert_refused(cli("profile", data, "-d", data), "is a single file")


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"", "is empty"),
        (b"  \n\t\n \n", "holds no usable text"),
        ("caf\xe9 au lait\n".encode("latin-1"), "is not utf-8"),
    ],
)
def test_unusable_files(
    cli: Cli, model_folder: Path, tmp_path: Path, content: bytes, phrase: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    assert_refused(cli("profile", model_folder, "-d", "bad.txt", *ENTROPY), "bad.txt", phrase)
    assert not (tmp_path / "runs").exists()


def test_short_and_long_texts_are_told(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("a\nb\n" + "long " * 80 + "\n")
    words = (
        "profile",
        model_folder,
        "-d",
        "odd.txt",
        "--metrics",
        "prompt_entropy,curvature",
        "--max-length",
        "500",
        "--json",
    )
    ended = cli(*words)
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    notes = " ".join(summary["warnings"])
    assert "1 of 3 texts were cut to 128 tokens" in notes
    assert "max_length 500 is more than the model's context" in notes
    assert summary["undefined"]["curvature"]["block.0"] == 2
    assert "NaN" not in ended.out


def test_offline_with_an_empty_cache(
    cli: Cli, model_folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_refused(
        cli("profile", "smollm2-135m", "-d", data),
        "model 'smollm2-135m' is not in the cache",
        "layerscope-zoo fetch smollm2-135m",
    )
    assert_refused(
        cli("profile", model_folder),
        "corpus 'lee' is not in the cache",
        "layerscope-zoo fetch lee",
    )
    assert_refused(
        cli("profile", "some-org/some-model", "-d", data),
        "some-org/some-model is not in the local hub cache",
    )


def test_a_place_that_cannot_be_written(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(
        cli("profile", model_folder, "-d", data, *ENTROPY, "-o", "file"), "file is a file"
    )
    assert_refused(
        cli("profile", model_folder, "-d", data, *ENTROPY, "-o", "file/run"),
        "cannot write",
        "Choose another",
    )


INTERRUPTED = """
import os, signal, sys
from layerscope.cli import main
from layerscope.profiling import encode
from layerscope.vectors import VectorSpace

encode.choose_shard_size = lambda *_: 4
add = VectorSpace.add

def add_and_stop(self, shard):
    add(self, shard)
    os.kill(os.getpid(), signal.SIGINT)

VectorSpace.add = add_and_stop
sys.argv = ["layerscope", *sys.argv[1:]]
main()
"""


def test_ctrl_c_keeps_what_is_finished(
    cli: Cli, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    words = ["profile", str(model_folder), "-d", str(data), *ENTROPY, "-o", str(tmp_path / "run")]
    ended = run_python(INTERRUPTED, *words)
    assert ended.returncode == 130 == 128 + signal.SIGINT
    assert ended.stdout == ""
    assert (
        ended.stderr.strip()
        == "layerscope: stopped. Finished work is kept: run the same command again to resume."
    )
    assert len(list((tmp_path / "run" / "shards").iterdir())) == 1
    assert cli(*words).code == 0
    assert Profile.load(tmp_path / "run").manifest["seconds"]["resumed_prompts"] == 4


def test_runs_of_different_size_do_not_meet_in_the_default_folder(
    cli: Cli, model_folder: Path, data: Path
) -> None:
    short = ("--metrics", "prompt_entropy", "--max-length", 16)
    for count in (5, 6):
        ended = cli("profile", model_folder, "--data", data, *short, "-n", count)
        assert ended.code == 0, ended.err
        assert f"runs/tiny-llama--texts.txt--applied--n{count}:" in ended.err
    again = cli(
        "profile",
        model_folder,
        "--data",
        data,
        *short,
        "-n",
        6,
        "--out",
        "runs/tiny-llama--texts.txt--applied--n5",
    )
    assert_refused(again, "differs in corpus", "overwrite")
