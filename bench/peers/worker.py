# SPDX-License-Identifier: Apache-2.0
"""Python's side of the benchmark: PyTorch's own DistributedDataParallel and torch.amp on one workload.

    python3 worker.py --workload gpt2 --batch 16 --mode eager|compiled|captured --weights FILE

With torchrun's variables it is one rank of several, under DistributedDataParallel.
Speaks bench_worker's protocol: a JSON line when it is ready, then one for each line read ("run N", "quit").
"captured" is the whole step, written by hand as one CUDA graph: forward, backward, unscale, clip, optimizer, scale.
"""
import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist

from models import MODELS, batch_of
from weights import loss_and_norm, read


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--mode", default="eager", choices=("eager", "compiled", "captured"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--weights", default="")
    return parser.parse_args()


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def say(**values):
    print(json.dumps(values), flush=True)


class Tail:
    """What comes after backward, alone: unscale, norm, clip, update, zero. fp32 parameters, as torch.amp has them."""

    def __init__(self, options, device):
        count = 148
        size = options.batch // count // 64 * 64
        self.parameters = [torch.nn.Parameter(torch.randn(size, device=device) * 0.02) for _ in range(count)]
        for parameter in self.parameters:
            parameter.grad = torch.randn_like(parameter)
        self.optimizer = torch.optim.AdamW(self.parameters, 1e-4, fused=True)
        self.scaler = torch.amp.GradScaler(device.type)
        self.scaler.scale(torch.ones((), device=device))
        self.values = {"parameters": count * size}
        self.what = "fp32 parameters, unscale + clip_grad_norm_ + fused AdamW + zero_grad"

    def step(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=False)
        return torch.zeros(())


class Training:
    def __init__(self, options, device):
        self.options, self.device = options, device
        model = MODELS[options.workload]().to(device)
        self.values = {"parameters": sum(p.numel() for p in model.parameters())}
        if options.weights:
            self.values |= self.check(model)
        if options.workload == "resnet50":
            model = model.to(memory_format=torch.channels_last)
        self.stream = torch.cuda.Stream() if options.mode == "captured" else None
        self.model = self.wrapped(model)
        self.clip = 1.0 if options.workload in ("gpt2", "small") else 0.0
        self.optimizer = self.make_optimizer()
        self.forward = torch.compile(self.model) if options.mode == "compiled" else self.model
        # With 65536 the first step overflows, and torch's fused SGD then goes on with a momentum it never wrote.
        scale = 1024.0 if options.workload == "resnet50" else 65536.0
        self.scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=device.type == "cuda")
        self.dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
        self.inputs = self.make_inputs()
        self.what = f"autocast {str(self.dtype)[6:]}, fp32 weights"
        self.step = self.eager_step
        if options.mode == "captured":
            self.capture()

    def check(self, model):
        tensors, _ = read(self.options.weights)
        batch = [tensors.pop(key).to(self.device) for key in ("check.input", "check.target")]
        model.load_state_dict(tensors)
        torch.backends.cudnn.allow_tf32 = False  # it would hide a difference of a percent
        loss, norm = loss_and_norm(model, batch)
        torch.backends.cudnn.allow_tf32 = True
        model.load_state_dict(tensors)
        model.zero_grad()
        return {"check_loss": loss, "check_grad_norm": norm}

    def wrapped(self, model):
        if not dist.is_initialized():
            return model
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():  # or it cannot be captured
            return torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[self.device.index] if self.device.type == "cuda" else None,
                gradient_as_bucket_view=True, static_graph=self.options.accumulate == 1)  # fmt: skip

    def quiet(self, last):
        return contextlib.nullcontext() if last or not dist.is_initialized() else self.model.no_sync()

    def make_optimizer(self):
        parameters = list(self.model.parameters())
        captured = self.options.mode == "captured"
        if self.options.workload in ("linear", "resnet50"):
            rate = torch.tensor(0.01) if captured else 0.01
            momentum = 0.9 if self.options.workload == "resnet50" else 0.0
            return torch.optim.SGD(parameters, rate, momentum=momentum, fused=True)
        return torch.optim.AdamW(parameters, 1e-4, fused=True, capturable=captured)

    def make_inputs(self):
        generator = torch.Generator().manual_seed(2 + (dist.get_rank() if dist.is_initialized() else 0))
        batch = [t.to(self.device) for t in batch_of(self.options.workload, self.options.batch, generator)]
        if self.options.workload == "resnet50":
            batch[0] = batch[0].contiguous(memory_format=torch.channels_last)
        return batch

    def eager_step(self):
        for i in range(self.options.accumulate):
            with self.quiet(i + 1 == self.options.accumulate):
                with torch.autocast(self.device.type, self.dtype):
                    loss = self.forward(*self.inputs)
                self.scaler.scale(loss / self.options.accumulate).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=self.options.mode != "captured")
        return loss.detach()

    def capture(self):
        stream = self.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(11):  # that many DistributedDataParallel needs before it can be captured
                self.eager_step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.loss = self.eager_step()

        def replay():
            graph.replay()
            return self.loss

        self.step = replay


def timed(work, device, steps):
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        loss = work.step()
    synchronize(device)
    return {"seconds": time.perf_counter() - begin, "loss": loss.item()}


def start(options):
    """This rank's device; the process group exists where there are several ranks."""
    if "WORLD_SIZE" not in os.environ:
        return torch.device(options.device)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # its watchdog disturbs captures
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def main():
    options = arguments()
    device = start(options)
    torch.backends.cudnn.benchmark = True
    work = (Tail if options.workload == "tail" else Training)(options, device)
    say(ready=True, torch=torch.__version__, **work.values)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "quit":
            break
        answer = timed(work, device, int(numbers[0])) | {"what": work.what}
        if device.type == "cuda":
            answer["peak_bytes"] = torch.cuda.max_memory_allocated()
        say(**answer)


main()
