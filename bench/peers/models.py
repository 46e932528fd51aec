# SPDX-License-Identifier: Apache-2.0
"""The measured models, named and computed as those in bench/models are."""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, -1)
        query, key, value = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(out.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with tied embeddings and no dropout; returns the mean loss over all tokens."""

    def __init__(self, vocabulary=50304, context=1024, layers=12, width=768, heads=12):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50 v1.5, with torchvision's names; returns the mean loss over the batch."""

    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = self.stage(64, 64, 3, 1)
        self.layer2 = self.stage(256, 128, 4, 2)
        self.layer3 = self.stage(512, 256, 6, 2)
        self.layer4 = self.stage(1024, 512, 3, 2)
        self.fc = nn.Linear(2048, classes)

    @staticmethod
    def stage(inputs, width, blocks, stride):
        first = Bottleneck(inputs, width, stride)
        return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


class WithMse(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, y):
        return F.mse_loss(self.body(x), y)


def mlp():
    return WithMse(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)))


def linear():
    return WithMse(nn.Sequential(nn.Linear(1024, 16)))


def small_gpt2():
    """42 layers of width 64: some 500 small tensors."""
    return Gpt2(vocabulary=256, context=64, layers=42, width=64, heads=4)


MODELS = {"mlp": mlp, "linear": linear, "small": small_gpt2, "gpt2": Gpt2, "resnet50": ResNet50}


def batch_of(model, size, generator, length=None):
    """Random inputs of `model` on the CPU, the same for the same generator."""

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    def whole(limit, *shape):
        return torch.randint(limit, shape, generator=generator)

    if model == "mlp":
        return normal(size, 128), normal(size, 128)
    if model == "linear":
        return normal(size, 1024), normal(size, 16)
    if model == "resnet50":
        side = length or 224
        return normal(size, 3, side, side), whole(1000, size)
    vocabulary, context = (50257, 1024) if model == "gpt2" else (256, 64)
    length = length or context
    return whole(vocabulary, size, length), whole(vocabulary, size, length)
