#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what Python's torch.amp does to the small text files beside this script.

    OMP_NUM_THREADS=1 python3 tests/golden/amp.py

Needs torch 2.11 with its Python side; no GPU. The files are committed, the tests read them.
"""
import pathlib

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.bool: "bool"}


def write(name, lines):
    header = f"# written by {pathlib.Path(__file__).name}, torch {torch.__version__.split('+')[0]}"
    (HERE / name).write_text("\n".join([header, *lines]) + "\n")


# ---- scale sequences -------------------------------------------------------------------------------------------------


def scale_sequence(seed, **options):
    """200 steps; about one in eight has an inf. A line: found, scale and growth tracker after update."""
    torch.manual_seed(seed)
    scaler = torch.amp.GradScaler("cpu", **options)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(200):
        found = torch.rand(()).item() < 0.125
        optimizer.zero_grad()
        scaler.scale(weight.sum() * (float("inf") if found else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        yield f"{int(found)} {scaler.get_scale()!r} {scaler._get_growth_tracker()}"


def scale_sequences():
    lines = []
    for seed, options in enumerate(
        [
            dict(),
            dict(init_scale=4.0, growth_interval=2),
            dict(init_scale=1024.0, growth_factor=1.5, backoff_factor=0.25, growth_interval=5),
            dict(init_scale=2.0**100, growth_interval=8, growth_factor=2.0, backoff_factor=0.9),
        ]
    ):
        merged = dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000) | options
        lines.append("run " + " ".join(repr(v) for v in merged.values()))
        lines += scale_sequence(seed, **options)
    write("amp_scale_sequences.txt", lines)


# ---- dtypes under autocast -------------------------------------------------------------------------------------------

# Each takes a (the first tensor argument's maker) and b (the others').
OPS = {
    "conv1d": lambda a, b: torch.conv1d(a(1, 2, 4), b(2, 2, 3)),
    "conv2d": lambda a, b: torch.conv2d(a(1, 2, 4, 4), b(2, 2, 3, 3)),
    "conv3d": lambda a, b: torch.conv3d(a(1, 2, 4, 4, 4), b(2, 2, 3, 3, 3)),
    "conv_tbc": lambda a, b: torch.conv_tbc(a(4, 2, 3), b(2, 3, 2), b(2), 0),
    "conv_transpose1d": lambda a, b: torch.conv_transpose1d(a(1, 2, 4), b(2, 2, 3)),
    "conv_transpose2d": lambda a, b: torch.conv_transpose2d(a(1, 2, 4, 4), b(2, 2, 3, 3)),
    "conv_transpose3d": lambda a, b: torch.conv_transpose3d(a(1, 2, 4, 4, 4), b(2, 2, 3, 3, 3)),
    "prelu": lambda a, b: torch.prelu(a(4), b(1)),
    "addmm": lambda a, b: torch.addmm(a(4, 4), b(4, 4), b(4, 4)),
    "addmv": lambda a, b: torch.addmv(a(4), b(4, 4), b(4)),
    "addr": lambda a, b: torch.addr(a(4, 4), b(4), b(4)),
    "matmul": lambda a, b: torch.matmul(a(4, 4), b(4, 4)),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a(4, 4), b(4, 4)),
    "mm": lambda a, b: torch.mm(a(4, 4), b(4, 4)),
    "mv": lambda a, b: torch.mv(a(4, 4), b(4)),
    "linalg_vecdot": lambda a, b: torch.linalg.vecdot(a(4), b(4)),
    "linear": lambda a, b: F.linear(a(4, 4), b(4, 4), b(4)),
    "addbmm": lambda a, b: torch.addbmm(a(4, 4), b(2, 4, 4), b(2, 4, 4)),
    "baddbmm": lambda a, b: torch.baddbmm(a(2, 4, 4), b(2, 4, 4), b(2, 4, 4)),
    "bmm": lambda a, b: torch.bmm(a(2, 4, 4), b(2, 4, 4)),
    "chain_matmul": lambda a, b: torch.chain_matmul(a(4, 4), b(4, 4)),
    "linalg_multi_dot": lambda a, b: torch.linalg.multi_dot([a(4, 4), b(4, 4), b(4, 4)]),
    "scaled_dot_product_attention": lambda a, b: F.scaled_dot_product_attention(a(1, 1, 4, 4), b(1, 1, 4, 4), b(1, 1, 4, 4)),
    "lstm_cell": lambda a, b: torch.lstm_cell(a(1, 4), [b(1, 4), b(1, 4)], b(16, 4), b(16, 4))[0],
    "gru_cell": lambda a, b: torch.gru_cell(a(1, 4), b(1, 4), b(12, 4), b(12, 4)),
    "rnn_tanh_cell": lambda a, b: torch.rnn_tanh_cell(a(1, 4), b(1, 4), b(4, 4), b(4, 4)),
    "rnn_relu_cell": lambda a, b: torch.rnn_relu_cell(a(1, 4), b(1, 4), b(4, 4), b(4, 4)),
    "acos": lambda a, b: torch.acos(a(4)),
    "asin": lambda a, b: torch.asin(a(4)),
    "cosh": lambda a, b: torch.cosh(a(4)),
    "erfinv": lambda a, b: torch.erfinv(a(4)),
    "exp": lambda a, b: torch.exp(a(4)),
    "expm1": lambda a, b: torch.expm1(a(4)),
    "log": lambda a, b: torch.log(a(4)),
    "log10": lambda a, b: torch.log10(a(4)),
    "log2": lambda a, b: torch.log2(a(4)),
    "log1p": lambda a, b: torch.log1p(a(4)),
    "reciprocal": lambda a, b: torch.reciprocal(a(4)),
    "rsqrt": lambda a, b: torch.rsqrt(a(4)),
    "sinh": lambda a, b: torch.sinh(a(4)),
    "tan": lambda a, b: torch.tan(a(4)),
    "pow_scalar": lambda a, b: torch.pow(a(4), 2),
    "pow_tensor": lambda a, b: torch.pow(a(4), b(4)),
    "softplus": lambda a, b: F.softplus(a(4)),
    "layer_norm": lambda a, b: F.layer_norm(a(4, 4), [4], b(4), b(4)),
    "group_norm": lambda a, b: F.group_norm(a(1, 4, 4), 2, b(4), b(4)),
    "batch_norm": lambda a, b: F.batch_norm(a(4, 4), None, None, b(4), b(4), True),
    "relu": lambda a, b: torch.relu(a(4)),
    "gelu": lambda a, b: F.gelu(a(4)),
    "norm": lambda a, b: torch.norm(a(4)),
    "frobenius_norm": lambda a, b: torch.linalg.matrix_norm(a(4, 4)),
    "nuclear_norm": lambda a, b: torch.nuclear_norm(a(4, 4)),
    "cosine_similarity": lambda a, b: torch.cosine_similarity(a(4, 4), b(4, 4)),
    "poisson_nll_loss": lambda a, b: torch.poisson_nll_loss(a(4), b(4), True, False, 1e-8, 1),
    "cosine_embedding_loss": lambda a, b: torch.cosine_embedding_loss(a(4, 4), b(4, 4), torch.ones(4)),
    "nll_loss": lambda a, b: F.nll_loss(a(4, 4), torch.zeros(4, dtype=torch.long)),
    "nll_loss2d": lambda a, b: F.nll_loss(a(1, 4, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long)),
    "hinge_embedding_loss": lambda a, b: torch.hinge_embedding_loss(a(4), torch.ones(4)),
    "kl_div": lambda a, b: torch.kl_div(a(4), b(4)),
    "l1_loss": lambda a, b: F.l1_loss(a(4), b(4)),
    "smooth_l1_loss": lambda a, b: F.smooth_l1_loss(a(4), b(4)),
    "huber_loss": lambda a, b: F.huber_loss(a(4), b(4)),
    "mse_loss": lambda a, b: F.mse_loss(a(4), b(4)),
    "cross_entropy": lambda a, b: F.cross_entropy(a(4, 4), torch.zeros(4, dtype=torch.long)),
    "ctc_loss": lambda a, b: torch.ctc_loss(F.log_softmax(a(4, 1, 4), -1), torch.ones(1, 2, dtype=torch.long), torch.tensor([4]), torch.tensor([2])),
    "margin_ranking_loss": lambda a, b: torch.margin_ranking_loss(a(4), b(4), torch.ones(4)),
    "multilabel_margin_loss": lambda a, b: F.multilabel_margin_loss(a(4, 4), torch.ones(4, 4, dtype=torch.long)),
    "soft_margin_loss": lambda a, b: F.soft_margin_loss(a(4), b(4)),
    "triplet_margin_loss": lambda a, b: torch.triplet_margin_loss(a(4, 4), b(4, 4), b(4, 4)),
    "multi_margin_loss": lambda a, b: F.multi_margin_loss(a(4, 4), torch.ones(4, dtype=torch.long)),
    "binary_cross_entropy": lambda a, b: F.binary_cross_entropy(a(4), b(4)),
    "binary_cross_entropy_with_logits": lambda a, b: torch.binary_cross_entropy_with_logits(a(4), b(4)),
    "dist": lambda a, b: torch.dist(a(4), b(4)),
    "pdist": lambda a, b: torch.pdist(a(4, 4)),
    "cdist": lambda a, b: torch.cdist(a(4, 4), b(4, 4)),
    "renorm": lambda a, b: torch.renorm(a(4, 4), 2, 0, 1.0),
    "logsumexp": lambda a, b: torch.logsumexp(a(4, 4), 0),
    "upsample_nearest2d": lambda a, b: F.interpolate(a(1, 1, 4, 4), scale_factor=2.0, mode="nearest"),
    "upsample_bilinear2d": lambda a, b: F.interpolate(a(1, 1, 4, 4), scale_factor=2.0, mode="bilinear"),
    "prod": lambda a, b: torch.prod(a(4)),
    "softmax": lambda a, b: torch.softmax(a(4), 0),
    "log_softmax": lambda a, b: torch.log_softmax(a(4), 0),
    "cumprod": lambda a, b: torch.cumprod(a(4), 0),
    "cumsum": lambda a, b: torch.cumsum(a(4), 0),
    "linalg_vector_norm": lambda a, b: torch.linalg.vector_norm(a(4)),
    "sum": lambda a, b: torch.sum(a(4)),
    "mean": lambda a, b: torch.mean(a(4)),
    "var": lambda a, b: torch.var(a(4)),
    "addcdiv": lambda a, b: torch.addcdiv(a(4), b(4), b(4)),
    "addcmul": lambda a, b: torch.addcmul(a(4), b(4), b(4)),
    "atan2": lambda a, b: torch.atan2(a(4), b(4)),
    "bilinear": lambda a, b: F.bilinear(a(4, 4), b(4, 4), b(4, 4, 4)),
    "cross": lambda a, b: torch.cross(a(3), b(3), 0),
    "dot": lambda a, b: torch.dot(a(4), b(4)),
    "vdot": lambda a, b: torch.vdot(a(4), b(4)),
    "grid_sampler": lambda a, b: F.grid_sample(a(1, 1, 4, 4), b(1, 4, 4, 2), align_corners=False),
    "index_put": lambda a, b: torch.index_put(a(4), [torch.tensor([0])], b(1)),
    "tensordot": lambda a, b: torch.tensordot(a(4, 4), b(4, 4), 1),
    "scatter_add": lambda a, b: torch.scatter_add(a(4), 0, torch.tensor([0]), b(1)),
    "cat": lambda a, b: torch.cat([a(4), b(4)]),
    "stack": lambda a, b: torch.stack([a(4), b(4)]),
    "add": lambda a, b: torch.add(a(4), b(4)),
    "mul": lambda a, b: torch.mul(a(4), b(4)),
    "div": lambda a, b: torch.div(a(4), b(4)),
    "eq": lambda a, b: torch.eq(a(4), b(4)),
    "lt": lambda a, b: torch.lt(a(4), b(4)),
    "avg_pool2d": lambda a, b: F.avg_pool2d(a(1, 1, 4, 4), 2),
    "max_pool2d": lambda a, b: F.max_pool2d(a(1, 1, 4, 4), 2),
    "reflection_pad1d": lambda a, b: F.pad(a(1, 1, 4), (1, 1), mode="reflect"),
    "embedding": lambda a, b: F.embedding(torch.zeros(2, dtype=torch.long), a(4, 4)),
    "adaptive_avg_pool3d": lambda a, b: F.adaptive_avg_pool3d(a(1, 1, 4, 4, 4), 2),
    "adaptive_max_pool3d": lambda a, b: F.adaptive_max_pool3d(a(1, 1, 4, 4, 4), 2),
    "avg_pool3d": lambda a, b: F.avg_pool3d(a(1, 1, 4, 4, 4), 2),
    "max_pool3d": lambda a, b: F.max_pool3d(a(1, 1, 4, 4, 4), 2),
    "max_unpool2d": lambda a, b: torch.ops.aten.max_unpool2d(a(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.long), [2, 2]),
    "reflection_pad2d": lambda a, b: F.pad(a(1, 1, 4, 4), (1, 1, 1, 1), mode="reflect"),
    "replication_pad1d": lambda a, b: F.pad(a(1, 1, 4), (1, 1), mode="replicate"),
    "replication_pad2d": lambda a, b: F.pad(a(1, 1, 4, 4), (1, 1, 1, 1), mode="replicate"),
    "replication_pad3d": lambda a, b: F.pad(a(1, 1, 4, 4, 4), (1, 1, 1, 1, 1, 1), mode="replicate"),
    "polar": lambda a, b: torch.real(torch.polar(a(4), b(4))),
    "quantile": lambda a, b: torch.quantile(a(4), 0.5),
    "nanquantile": lambda a, b: torch.nanquantile(a(4), 0.5),
    "trace": lambda a, b: torch.trace(a(4, 4)),
    "stft": lambda a, b: torch.real(torch.stft(a(16), 4, return_complex=True)),
    "fft_fft": lambda a, b: torch.real(torch.fft.fft(a(4))),
    "fft_ifft": lambda a, b: torch.real(torch.fft.ifft(a(4))),
    "fft_rfft": lambda a, b: torch.real(torch.fft.rfft(a(4))),
    "fft_irfft": lambda a, b: torch.fft.irfft(a(4)),
    "fft_hfft": lambda a, b: torch.fft.hfft(a(4)),
    "cholesky": lambda a, b: torch.linalg.cholesky(a(1, 1)),
    "cholesky_inverse": lambda a, b: torch.cholesky_inverse(a(1, 1)),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(a(1, 1), b(1, 1)),
    "inverse": lambda a, b: torch.inverse(a(1, 1)),
    "pinverse": lambda a, b: torch.pinverse(a(2, 2)),
    "geqrf": lambda a, b: torch.geqrf(a(2, 2))[0],
    "triangular_solve": lambda a, b: torch.triangular_solve(a(1, 1), b(1, 1))[0],
    "linalg_cond": lambda a, b: torch.linalg.cond(a(1, 1)),
    "linalg_solve": lambda a, b: torch.linalg.solve(a(1, 1), b(1)),
    "linalg_svdvals": lambda a, b: torch.linalg.svdvals(a(2, 2)),
    "linalg_eigvalsh": lambda a, b: torch.linalg.eigvalsh(a(2, 2)),
    "linalg_inv": lambda a, b: torch.linalg.inv(a(1, 1)),
    "linalg_qr": lambda a, b: torch.linalg.qr(a(2, 2))[0],
    "linalg_svd": lambda a, b: torch.linalg.svd(a(2, 2))[1],
    "linalg_eigh": lambda a, b: torch.linalg.eigh(a(2, 2))[0],
    "linalg_lstsq": lambda a, b: torch.linalg.lstsq(a(1, 1), b(1, 1))[0],
    "linalg_householder_product": lambda a, b: torch.linalg.householder_product(a(2, 2), b(2)),
    "index_copy": lambda a, b: torch.index_copy(a(4), 0, torch.tensor([0]), b(1)),
    "exp_": lambda a, b: a(4).exp_(),
    "add_": lambda a, b: a(4).add_(b(4)),
}


def dtype_of(op, first, others, low):
    maker = lambda dtype: lambda *shape: torch.full(shape, 0.5, dtype=dtype)
    try:
        with torch.autocast("cpu", dtype=low):
            return NAMES[op(maker(first), maker(others)).dtype]
    except (RuntimeError, NotImplementedError):
        return "error"


def autocast_dtypes():
    lines = ["# op, low dtype; result for (first, others) = (fp32, fp32), (low, low), (fp32, low), (low, fp32)"]
    for name, op in OPS.items():
        for low in (torch.bfloat16, torch.float16):
            pairs = [(torch.float32, torch.float32), (low, low), (torch.float32, low), (low, torch.float32)]
            lines.append(" ".join([name, NAMES[low], *(dtype_of(op, a, b, low) for a, b in pairs)]))
    write("amp_autocast_dtypes.txt", lines)


# ---- opt levels ------------------------------------------------------------------------------------------------------


def pattern(*shape, by):
    """Numbers that every language makes alike: multiples of 1/64 in [-1/2, 1/2)."""
    count = torch.arange(torch.Size(shape).numel())
    return (((count * by) % 64 - 32).to(torch.float32) / 64).reshape(shape)


def small_net():
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(pattern(*parameter.shape, by=37 + 2 * i))
        net[1].weight.fill_(1.0)
    return net


def make_optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=0.01, weight_decay=0.01)


def train(level, optimizer_name):
    """Losses of 20 steps and the sum of each parameter at the end. The levels in a few plain lines each."""
    low, scale = torch.bfloat16, 65536.0 if level in ("O1", "O2") else 1.0
    net = small_net()
    if level in ("O2", "O3"):
        net.to(low)
    if level == "O2":
        net[1].float()
    parameters = list(net.parameters())
    works_on = [p.detach().float().clone() if p.dtype == low else p for p in parameters]
    optimizer = make_optimizer(optimizer_name, works_on)
    x, target = pattern(16, 4, by=29), pattern(16, 3, by=23)
    losses = []
    for _ in range(20):
        with torch.autocast("cpu", dtype=low, enabled=level == "O1"):
            output = net(x.to(low) if level in ("O2", "O3") else x).float()
        loss = F.mse_loss(output, target)
        losses.append(loss.item())
        net.zero_grad()
        (loss * scale).backward()
        with torch.no_grad():
            for p, w in zip(parameters, works_on):
                if level == "O3":
                    w.copy_(p)
                w.grad = p.grad.float() / scale
            optimizer.step()
            for p, w in zip(parameters, works_on):
                p.copy_(w)
    return losses, [p.float().sum().item() for p in parameters]


def opt_levels():
    lines = ["# level, optimizer, 20 losses, 6 sums of parameters"]
    for level in ("O0", "O1", "O2", "O3"):
        for optimizer in ("sgd", "adam", "adamw"):
            losses, sums = train(level, optimizer)
            lines.append(" ".join([level, optimizer, *(repr(v) for v in losses + sums)]))
    write("amp_opt_levels.txt", lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    opt_levels()
    scale_sequences()
    autocast_dtypes()
