"""Write how the packaged embedding model's weights are computed with, to task/embedding/minilm.onnx.

`python -m scripts.embedding_graph FOLDER` reads the official `model.safetensors` there. The graph holds no weights: it
names their places in that file. OpenVINO and onnxruntime load both without torch.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from task.embedding.weights import GRAPH, MODEL_NAME

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = "model.safetensors"
LAYERS, HEADS, WIDTH, EPSILON = 6, 12, 384, 1e-12  # of the model's config.json
OPSET, IR_VERSION = 20, 9  # the first with Gelu; of onnxruntime since 1.17


class Graph:
    """The model in ONNX, built node by node; a method that adds a node returns the name of its output."""

    def __init__(self, folder: Path) -> None:
        with (folder / WEIGHTS).open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            self._tensors: dict[str, Any] = json.loads(file.read(size))
        self._start = 8 + size
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}

    def model(self) -> ModelProto:
        """Words and additive mask in, the last layer's vector of each word out."""
        hidden = self._embedded()
        bias = self.add("Unsqueeze", "bias", self.constant([1, 2]))
        for layer in range(LAYERS):
            hidden = self._layer(f"encoder.layer.{layer}", hidden, bias)
        self._nodes.append(helper.make_node("Identity", [hidden], ["hidden"]))
        shape = ["texts", "words"]
        inputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, shape),
            helper.make_tensor_value_info("bias", TensorProto.FLOAT, shape),
        ]
        outputs = [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*shape, WIDTH])]
        graph = helper.make_graph(self._nodes, MODEL_NAME, inputs, outputs, list(self._constants.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: list[int]) -> str:
        name = str(values)
        self._constants[name] = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        return name

    def weight(self, name: str) -> str:
        """A tensor of the weights' file, by its place there."""
        first, end = self._tensors[name]["data_offsets"]
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=self._tensors[name]["shape"])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", self._start + first), ("length", end - first)):
            tensor.external_data.add(key=key, value=str(value))
        self._constants[name] = tensor
        return name

    def _linear(self, name: str, hidden: str) -> str:
        matrix = self.add("Transpose", self.weight(f"{name}.weight"), perm=[1, 0])
        return self.add("Add", self.add("MatMul", hidden, matrix), self.weight(f"{name}.bias"))

    def _norm(self, name: str, hidden: str) -> str:
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", hidden, weight, bias, axis=-1, epsilon=EPSILON)

    def _embedded(self) -> str:
        length = self.add("Shape", "ids", start=1)
        positions = self.weight("embeddings.position_embeddings.weight")
        places = self.add("Slice", positions, self.constant([0]), length, self.constant([0]))
        kinds = self.weight("embeddings.token_type_embeddings.weight")
        kind = self.add("Slice", kinds, self.constant([0]), self.constant([1]), self.constant([0]))
        words = self.add("Gather", self.weight("embeddings.word_embeddings.weight"), "ids")
        return self._norm("embeddings.LayerNorm", self.add("Add", self.add("Add", words, places), kind))

    def _layer(self, name: str, hidden: str, bias: str) -> str:
        def heads(part: str, order: list[int]) -> str:
            found = self._linear(f"{name}.attention.self.{part}", hidden)
            split = self.add("Reshape", found, self.constant([0, 0, HEADS, WIDTH // HEADS]))
            return self.add("Transpose", split, perm=order)

        scale = self.add("Constant", value_float=(WIDTH // HEADS) ** -0.5)
        scores = self.add("MatMul", heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]))
        shares = self.add("Softmax", self.add("Add", self.add("Mul", scores, scale), bias), axis=-1)
        found = self.add("Transpose", self.add("MatMul", shares, heads("value", [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        attended = self._linear(
            f"{name}.attention.output.dense", self.add("Reshape", found, self.constant([0, 0, WIDTH]))
        )
        hidden = self._norm(f"{name}.attention.output.LayerNorm", self.add("Add", attended, hidden))
        inner = self.add("Gelu", self._linear(f"{name}.intermediate.dense", hidden))
        after = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", self.add("Add", after, hidden))


if __name__ == "__main__":
    (ROOT / "task/embedding" / GRAPH).write_bytes(
        Graph(Path(sys.argv[1])).model().SerializeToString(deterministic=True)
    )
