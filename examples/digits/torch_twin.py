"""The same network and the same training by PyTorch, of the same arrays."""

import time

import torch

F = torch.nn.functional


def compute_logits(parameters, images):
    weight1, bias1, weight2, bias2, weight3, bias3 = parameters
    x = F.max_pool2d(F.relu(F.conv2d(images, weight1, bias1, padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, weight2, bias2, padding=1)), 2)
    return F.linear(x.flatten(1), weight3, bias3)


def train(parameters, batches, lr, momentum):
    """Return the loss and the seconds of each step, and the parameters in the end."""
    torch.set_num_threads(1)  # arrays are small: a second one waits more than it does
    parameters = [torch.tensor(array, requires_grad=True) for array in parameters]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    losses, seconds = [], []
    for images, labels in batches:
        images, labels = torch.from_numpy(images), torch.from_numpy(labels)
        begun = time.perf_counter()
        loss = F.cross_entropy(compute_logits(parameters, images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    return losses, seconds, [each.detach().numpy() for each in parameters]
