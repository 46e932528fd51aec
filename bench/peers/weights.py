# SPDX-License-Identifier: Apache-2.0
"""Writes a model's weights, a batch, and what one process computes from them in fp32 on the CPU: loss and gradient norm.

    python3 weights.py MODEL FILE

Each side of the benchmark loads the file and must find the same numbers before it is timed. The format is safetensors:
eight bytes with the header's length, a JSON header, the tensors' bytes.
"""
import json
import struct
import sys

import torch

from models import MODELS, batch_of

NAMES = {torch.float32: "F32", torch.int64: "I64"}
CHECK_BATCH = {"mlp": (16, None), "linear": (64, None), "small": (2, 64), "gpt2": (1, 64), "resnet50": (8, 96)}


def loss_and_norm(model, batch):
    model.zero_grad()
    loss = model(*batch)
    loss.backward()
    norms = [p.grad.norm() for p in model.parameters()]
    return loss.item(), torch.stack(norms).norm().item()


def make(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    if name in ("gpt2", "small"):
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)
    return model


def write(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().numpy().tobytes())


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    metadata = header.pop("__metadata__")
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=dtypes[entry["dtype"]], count=(end - begin) // dtypes[entry["dtype"]].itemsize, offset=begin)
        tensors[name] = flat.view(entry["shape"])
    return tensors, metadata


def main(name, path):
    model = make(name)
    size, length = CHECK_BATCH[name]
    batch = batch_of(name, size, torch.Generator().manual_seed(1), length)
    # Running statistics are buffers that forward writes: what is saved is the state before it.
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    loss, norm = loss_and_norm(model, batch)
    tensors.update({"check.input": batch[0], "check.target": batch[1]})
    write(path, tensors, {"loss": repr(loss), "grad_norm": repr(norm)})


if __name__ == "__main__":
    main(*sys.argv[1:])
