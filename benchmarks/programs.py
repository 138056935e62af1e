"""Five programs of people's kinds, with torch.nn's layers and with ours: losses, times and memory.

Run ``python benchmarks/programs.py``. A program is one function of a module `nn`, from which it takes RNN, GRU or LSTM:
that is the one import that changes. Each runs in a process of its own, in turns, three times for a count of threads; a
line has medians of whole trainings, the peak memory of whole processes, and the largest difference of losses, in all
steps, from torch.nn's.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

TURNS, THREADS = 3, (1, 2)


def language_model(nn):
    """Letter after letter of a text with an LSTM of two layers, dropout, states that are carried on, and clipping."""
    text = " ".join(f"{a} times {b} is {a * b}." for a in range(60) for b in range(60))
    letters = sorted(set(text))
    data = torch.tensor([letters.index(each) for each in text])[: len(text) // 32 * 32].view(32, -1).T
    embedding, head = torch.nn.Embedding(len(letters), 64), torch.nn.Linear(256, len(letters))
    lstm, states = nn.LSTM(64, 256, 2, dropout=0.2), None
    every = torch.nn.ModuleList([embedding, lstm, head])
    optimizer = torch.optim.Adam(every.parameters(), lr=2e-3)
    for first in range(0, 30 * 64, 64):
        x, y = data[first : first + 64], data[first + 1 : first + 65]
        output, states = lstm(embedding(x), states)
        states = tuple(each.detach() for each in states)
        yield step(optimizer, cross_entropy(head(output).flatten(0, 1), y.flatten()), every, clip=1.0)


def tagger(nn):
    """Give a tag to every word, of sentences of many lengths, packed, with an LSTM of two directions."""
    rng = np.random.default_rng(0)
    embedding, head = torch.nn.Embedding(500, 64), torch.nn.Linear(128, 8)
    lstm = nn.LSTM(64, 64, bidirectional=True, batch_first=True)
    every = torch.nn.ModuleList([embedding, lstm, head])
    optimizer = torch.optim.Adam(every.parameters(), lr=3e-3)
    for _ in range(60):
        lengths = np.clip(rng.geometric(0.06, 32), 2, 100)
        words = [torch.from_numpy(rng.integers(0, 500, n)) for n in lengths]
        tags = [each % 2 + 2 * (each.roll(1) % 2) + 4 * (each.roll(-1) % 2) for each in words]  # of three words
        x = embedding(pad_sequence(words, batch_first=True))
        output, _ = lstm(pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False))
        output, _ = pad_packed_sequence(output, batch_first=True)
        y = pad_sequence(tags, batch_first=True, padding_value=-1)
        yield step(optimizer, cross_entropy(head(output).flatten(0, 1), y.flatten(), ignore_index=-1), every)


def regressor(nn):
    """Add up two marked numbers of 2,000, with a GRU whose last state is read."""
    gru, head = nn.GRU(2, 64, batch_first=True), torch.nn.Linear(64, 1)
    every = torch.nn.ModuleList([gru, head])
    optimizer = torch.optim.Adam(every.parameters(), lr=1e-3)
    for _ in range(12):
        x = torch.rand(16, 2000, 2)
        x[..., 1] = 0
        x[:, 10, 1] = x[:, 1990, 1] = 1
        _, last = gru(x)
        yield step(optimizer, mse_loss(head(last[-1])[:, 0], x.prod(2).sum(1)), every, clip=1.0)


def policy(nn):
    """Act one step at a time in 16 games of remembering a sign, then train on windows, cut where a game ends."""
    gru, actor = nn.GRU(3, 64), torch.nn.Linear(64, 2)
    every = torch.nn.ModuleList([gru, actor])
    optimizer = torch.optim.Adam(every.parameters(), lr=3e-3)
    state, age = torch.zeros(1, 16, 64), torch.zeros(16, dtype=torch.int64)
    sign, stop = torch.randint(2, (16,)), torch.randint(8, 24, (16,))
    for _ in range(30):
        first, seen, begun, done, won = state, [], [], [], []
        with torch.no_grad():
            for _ in range(64):  # acting
                x = torch.stack([(2.0 * sign - 1) * (age == 0), (age == stop).float(), torch.ones(16)], 1)
                state = state * (age > 0)[:, None]
                output, state = gru(x[None], state)
                action = torch.distributions.Categorical(logits=actor(output[0])).sample()
                over = age == stop
                reward = torch.where(over, 2.0 * (action == sign) - 1, 0.0)
                for kept, each in zip((seen, begun, done, won), (x, age == 0, action, reward), strict=True):
                    kept.append(each)
                age = torch.where(over, 0, age + 1)
                sign = torch.where(over, torch.randint(2, (16,)), sign)
                stop = torch.where(over, torch.randint(8, 24, (16,)), stop)
        outputs, own = [], first
        cuts = [0, *(t for t in range(1, 64) if begun[t].any()), 64]
        for begin, end in zip(cuts[:-1], cuts[1:], strict=True):
            output, own = gru(torch.stack(seen[begin:end]), own * ~begun[begin][:, None])
            outputs.append(output)
        chosen = torch.distributions.Categorical(logits=actor(torch.cat(outputs))).log_prob(torch.stack(done))
        yield step(optimizer, -(chosen * torch.stack(won)).sum(0).mean(), every)


def time_series(nn):
    """Predict the next values of seven noisy waves, from windows of 96, with a GRU of two layers and dropout."""
    t = torch.arange(4000.0)
    waves = torch.stack([torch.sin(t / (5 + 3 * i)) + torch.cos(t / (37 + i)) for i in range(7)], 1)
    waves += 0.1 * torch.randn_like(waves)
    gru, head = nn.GRU(7, 128, 2, dropout=0.1, batch_first=True), torch.nn.Linear(128, 7)
    every = torch.nn.ModuleList([gru, head])
    optimizer = torch.optim.AdamW(every.parameters(), lr=2e-3)
    for _ in range(40):
        begin = torch.randint(0, 4000 - 97, (32,))
        windows = torch.stack([waves[b : b + 97] for b in begin])
        output, _ = gru(windows[:, :-1])
        yield step(optimizer, mse_loss(head(output), windows[:, 1:]), every)


def step(optimizer, loss, model, clip=None):
    """Take a step; return the loss."""
    optimizer.zero_grad()
    loss.backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


PROGRAMS = [language_model, tagger, regressor, policy, time_series]


def run(name, whose, threads):
    """Run one program, once as it begins, so that everything is compiled and loaded, and then from the start."""
    if whose == "ours":
        import bppsa_nb.torch as nn
    else:
        from torch import nn
    torch.set_num_threads(threads)
    program = {each.__name__: each for each in PROGRAMS}[name]
    torch.manual_seed(0)
    start = program(nn)
    next(start), next(start)
    torch.manual_seed(0)
    began = time.perf_counter()
    losses = list(program(nn))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "losses": losses, "MiB": peak}))


def main():
    """Run all programs, or one, in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs=3, metavar=("PROGRAM", "WHOSE", "THREADS"), help="one, in this process")
    asked = parser.parse_args()
    if asked.run:
        name, whose, threads = asked.run
        run(name, whose, int(threads))
        return
    for program in PROGRAMS:
        for threads in THREADS:
            found = {"torch.nn": [], "ours": []}
            for _ in range(TURNS):
                for whose in found:
                    call = [sys.executable, __file__, "--run", program.__name__, whose, str(threads)]
                    found[whose].append(json.loads(subprocess.run(call, check=True, capture_output=True).stdout))
            theirs, own = (np.median([each["seconds"] for each in found[whose]]) for whose in found)
            memory = [np.median([each["MiB"] for each in found[whose]]) for whose in found]
            losses = [np.array(found[whose][0]["losses"]) for whose in found]
            print(
                f"{program.__name__:<16} {threads} threads: torch.nn {theirs:7.2f} s, ours {own:7.2f} s, "
                f"ratio {theirs / own:5.2f}; {memory[0]:.0f} and {memory[1]:.0f} MiB; losses {losses[0][0]:.3f} to "
                f"{losses[0][-1]:.3f}, differing by {np.abs(losses[0] - losses[1]).max():.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
