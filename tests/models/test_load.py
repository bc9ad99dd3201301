"""Loading from folders, wrapping modules, and what is refused."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf

import layerscope
from layerscope.errors import LayerscopeError, ModelError, OfflineError, UnknownNameError
from layerscope.extras import MissingExtraError
from layerscope.models import LoadedModel, load, open_model, settings, wrap
from layerscope.models.source import resolve
from layerscope.store import RunFolder
from tests.models.reading import read_layers, some_ids
from tests.shared import offline
from tests.tiny import EOS, build_tiny, tiny_model, tiny_tokenizer


def save(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    build_tiny(family, seed).save_pretrained(folder)
    tiny_tokenizer(family in ("bert", "mpnet", "roberta")).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("how", ["in place", "by rename"])
def test_weights_that_change_under_a_run_are_told_and_nothing_is_complete(
    how: str, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = save(tmp_path / "a"), save(tmp_path / "b", seed=1)
    run = LoadedModel.run

    def overwrite(model: LoadedModel, batch: object) -> object:
        if how == "in place":
            (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
        else:
            shutil.copy(other / "model.safetensors", tmp_path / "new")
            (tmp_path / "new").replace(folder / "model.safetensors")
        return run(model, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(LoadedModel, "run", overwrite)
    with pytest.raises(
        ModelError,
        match=r"model.safetensors was changed while .* was in use.* Run the same command again",
    ):
        layerscope.profile(
            folder, texts, out=tmp_path / "run", views=2, permutations=2, progress=False
        )
    assert (RunFolder(tmp_path / "run").manifest() or {})[
        "status"
    ] == "running"  # the same command resumes it
    monkeypatch.undo()
    with pytest.raises(LayerscopeError, match=r"model\.weights_sha256"):
        layerscope.profile(
            folder, texts, out=tmp_path / "run", views=2, permutations=2, progress=False
        )


@pytest.mark.parametrize(
    "option",
    [{"dtype": "float64"}, {"bidirectional": True}, {"device": "cpu"}, {"adapters": ["a"]}],
)
def test_a_model_in_memory_takes_no_options_of_loading(
    option: dict[str, object], texts: list[str]
) -> None:
    (name,) = option
    with pytest.raises(ModelError, match=f"^{name}= is for a model given by its name; Llama"):
        open_model(build_tiny("llama"), None, option)
    with pytest.raises(ModelError, match=f"^{name}= is for a model given by its name; LoadedModel"):
        layerscope.profile(tiny_model("llama"), texts, progress=False, **option)
    given = {"family": "llama", "adapters": []}
    assert open_model(build_tiny("llama"), None, given).anatomy.family == "llama"
    with pytest.raises(ModelError, match=r"a model in memory goes to wrap\(\)"):
        load(build_tiny("llama"))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba", "bert", "gpt_neox"])
def test_a_folder_gives_the_same_states_as_the_module(family: str, tmp_path: Path) -> None:
    model, ids = load(save(tmp_path / "m", family), device="cpu"), some_ids(2)
    assert not model.module.training
    assert not any(p.requires_grad for p in model.module.parameters())
    for ours, own in zip(
        read_layers(model, ids), read_layers(tiny_model(family), ids), strict=True
    ):
        assert torch.equal(ours, own)


def test_identity_is_plain_and_complete(tmp_path: Path) -> None:
    identity = load(str(save(tmp_path / "m"))).identity
    expected = {"name": "m", "source": "folder", "family": "llama", "architecture": "LlamaModel", "dtype": "float32",
                "n_blocks": 3, "width": 32, "context_length": 128, "bidirectional": False, "adapters": []}  # fmt: skip
    assert expected.items() <= identity.items()
    assert len(identity["weights_sha256"]) == 64
    assert all(isinstance(v, str | int | bool | list | None) for v in identity.values())


def test_fingerprint_needs_no_loading_and_follows_the_weights(tmp_path: Path) -> None:
    first = resolve(save(tmp_path / "a", seed=0)).weights_sha256()
    assert first == load(tmp_path / "a").identity["weights_sha256"]
    assert first == resolve(save(tmp_path / "b", seed=0)).weights_sha256()
    assert (
        first != resolve(save(tmp_path / "a", seed=1)).weights_sha256()
    )  # the same path, other weights
    a, b = (wrap(build_tiny("llama", seed)).identity["weights_sha256"] for seed in (0, 1))
    assert a != b
    assert a == wrap(build_tiny("llama", 0)).identity["weights_sha256"]


def test_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "bfloat16_units", lambda: "amx_bf16")
    build_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert load(tmp_path).identity["dtype"] == "float32"
    assert load(tmp_path, dtype="auto").identity["dtype"] == "bfloat16"
    assert load(tmp_path, dtype=torch.float16).identity["dtype"] == "float16"
    with pytest.raises(
        UnknownNameError, match=r"unknown dtype 'float31'. Did you mean 'float\d\d'"
    ):
        load(tmp_path, dtype="float31")
    with pytest.raises(UnknownNameError, match="unknown dtype 'int8'"):
        load(tmp_path, dtype=torch.int8)


def test_devices(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown device 'gpu'"):
        load(tmp_path, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(
            ModelError, match=r"'cuda' is not available on this machine.* or use cpu"
        ):
            load(tmp_path, device="cuda")
    with pytest.raises(ModelError, match="either device or device_map"):
        load(tmp_path, device="cpu", device_map="auto")


def test_device_map(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = load(save(tmp_path), device_map={"": "cpu"})
    assert model.device == torch.device("cpu")
    assert torch.equal(
        read_layers(model, some_ids())[-1], read_layers(tiny_model("llama"), some_ids())[-1]
    )


@pytest.mark.parametrize(
    ("package", "extra", "options"),
    [("accelerate", "device-map", {"device_map": "auto"}), ("peft", "peft", {"adapters": ["x"]})],
)
def test_missing_extras_are_named(
    package: str, extra: str, options: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install .*\[{extra}\]'"):
        load(tmp_path, **options)


def test_missing_gguf_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.Q4_K_M.gguf").write_bytes(b"GGUF")
    assert resolve(tmp_path / "m.Q4_K_M.gguf").quantization == "Q4_K_M"
    assert resolve(tmp_path).gguf == "m.Q4_K_M.gguf"
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match="gguf"):
        load(tmp_path)
    (tmp_path / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="2 GGUF files"):
        resolve(tmp_path)


def test_pickle_is_refused_unless_allowed(tmp_path: Path) -> None:
    module = build_tiny("llama")
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights only.*allow_pickle=True"):
        load(tmp_path)
    model = load(tmp_path, allow_pickle=True)
    assert torch.equal(
        read_layers(model, some_ids())[-1], read_layers(tiny_model("llama"), some_ids())[-1]
    )


def test_remote_code_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoModel": "code.Mine"}}'
    )
    with pytest.raises(ModelError, match="trust_remote_code=True"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mine"}')
    with pytest.raises(ModelError, match=r"'mine'.*does not know"):
        load(tmp_path)


def test_incomplete_weights_are_not_left_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state.pop("layers.1.mlp.up_proj.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 weights.*layers\.1\.mlp\.up_proj"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        ("smollm2-135", UnknownNameError, "Did you mean 'smollm2-135m'.*hub id org/name"),
        (
            "minilm-l6",
            OfflineError,
            r"'minilm-l6' is not in the cache .*layerscope-zoo fetch minilm-l6",
        ),
        ("no-such/model-of-ours", OfflineError, "not in the local hub cache"),
        ("./no/such/folder", ModelError, "no such file or folder"),
    ],
)
def test_what_cannot_be_found(
    spec: str,
    error: type[LayerscopeError],
    text: str,
) -> None:
    with offline(), pytest.raises(error, match=text):
        load(spec)


def test_unreachable_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("name resolution failed")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(
        ModelError,
        match=r"org/name@v1 could not be fetched from the hub \(ConnectionError: name res",
    ):
        load("org/name@v1")
    with pytest.raises(ModelError, match="two revisions"):
        load("org/name@v1", revision="v2")


def test_hub_cache_is_used_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "hub" / "models--org--name"
    save(repo / "snapshots" / ("a" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with offline():
        source = resolve("org/name")
        model = load("org/name")
    assert (source.kind, source.revision) == ("hub", "a" * 40)
    assert model.identity["revision"] == "a" * 40


@pytest.mark.parametrize(
    "content", [{}, {"config.json": "[]"}, {"config.json": "{"}, {"adapter_config.json": "{}"}]
)
def test_folders_that_are_not_models(content: dict[str, str], tmp_path: Path) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError):
        load(tmp_path)


def test_wrap_unwraps_heads_and_leaves_weights_alone() -> None:
    config = build_tiny("llama").config
    head = hf.LlamaForCausalLM(config)
    model = wrap(head, tiny_tokenizer())
    assert model.module is head.model
    assert all(p.requires_grad for p in head.parameters())
    neox = hf.GPTNeoXForCausalLM(build_tiny("gpt_neox").config)
    assert wrap(neox).module is neox.gpt_neox
    bert = hf.BertForSequenceClassification(build_tiny("bert").config)
    assert wrap(bert).module is bert.bert
    with pytest.raises(ModelError, match="use load"):
        wrap("smollm2-135m")  # type: ignore[arg-type]


def test_wrap_takes_a_sentence_transformer() -> None:
    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.auto_model = build_tiny("bert")

    outer = torch.nn.Sequential(Inner(), torch.nn.Identity())
    outer.tokenizer = tiny_tokenizer(encoder=True)
    model = wrap(outer)
    assert model.module is outer[0].auto_model
    assert model.tokenize(["hi"]).ids[0][0] == 3


def test_t5_is_read_through_its_encoder() -> None:
    config = hf.T5Config(
        vocab_size=262, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, pad_token_id=0
    )
    model = wrap(hf.T5ForConditionalGeneration(config), tiny_tokenizer())
    assert model.n_blocks == 3
    assert model.anatomy.final_norm is model.module.get_submodule("final_layer_norm")


def test_padding_without_a_mask_is_refused() -> None:
    class Toy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(262, 8)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layers[1](self.layers[0](self.embed(ids)))

    model, ids = wrap(Toy(), tiny_tokenizer()), some_ids()
    assert (model.n_blocks, model.width, model.max_length) == (2, 8, None)
    assert model.forward(ids, torch.ones_like(ids)).shape == (1, 7, 8)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    with pytest.raises(ModelError, match="takes no attention mask"):
        model.forward(ids, mask)


class TestTokenize:
    """Token ids and what was cut."""

    def model(self, family: str = "llama") -> LoadedModel:
        return tiny_model(family)

    def test_special_tokens_and_truncation(self) -> None:
        tokens = self.model("bert").tokenize(["hello there", "hi", ""], 6)
        assert tokens.truncated == [True, False, False]
        assert [len(ids) for ids in tokens.ids] == [6, 4, 2]
        assert all(ids[0] == 3 and ids[-1] == 4 for ids in tokens.ids)
        assert self.model().tokenize(["abc"], 4).truncated == [False]
        assert self.model().tokenize(["abcd"], 4).truncated == [True]

    def test_cut_from_the_right_whatever_the_tokenizer_says(self) -> None:
        model = self.model()
        model.tokenizer.truncation_side = "left"
        again = wrap(model.module, model.tokenizer)
        assert again.tokenize(["abcdef"], 4).ids == [model.tokenize(["abc"]).ids[0]]
        assert model.tokenizer.truncation_side == "left"

    def test_default_limit_is_the_context_length(self) -> None:
        tokens = self.model().tokenize(["x" * 500])
        assert (len(tokens.ids[0]), tokens.truncated) == (128, [True])
        assert len(self.model("mamba").tokenize(["x" * 500]).ids[0]) == 501
        assert self.model().tokenize([]).ids == []

    def test_a_single_string_is_refused(self) -> None:
        with pytest.raises(LayerscopeError, match="list of texts"):
            self.model().tokenize("hello")

    def test_padding_id_falls_back(self) -> None:
        model = self.model()
        model.tokenizer.pad_token = None
        model.module.config.pad_token_id = None
        assert model.pad_id == EOS


@pytest.mark.parametrize(
    ("flags", "units"),
    [
        ("Features : fp asimd bf16", "bf16"),
        ("flags\t: sse amx_bf16", "amx_bf16"),
        ("flags : sse2", ""),
        ("", None),
    ],
)
def test_what_a_cpu_has_for_bfloat16_is_read(
    flags: str, units: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    monkeypatch.setattr(settings, "_CPU_FACTS", tmp_path / "cpuinfo")
    assert settings.bfloat16_units() == units


def test_a_cpu_without_bfloat16_units_reads_float32_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(settings, "bfloat16_units", lambda: "")
    assert load(tmp_path, dtype="auto", device="cpu").dtype == torch.float32
    assert "no bfloat16 units" in caplog.text
    caplog.clear()
    assert load(tmp_path, dtype="bfloat16", device="cpu").dtype == torch.bfloat16
    assert not caplog.text
    monkeypatch.setattr(settings, "bfloat16_units", lambda: None)
    assert load(tmp_path, dtype="auto", device="cpu").dtype == torch.bfloat16
