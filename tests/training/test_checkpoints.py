import json
import signal
import zipfile

import numpy as np
import pytest
from trainers import DATA, Pictures, assert_same, fit, new_trainer, picture_trainer, pruned_trainer, state

from bppsa_nb import RNN, Adam, Trainer


def rewrite(path, change):
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


def renote(gone=None, **changes):
    def change(arrays):
        note = json.loads(str(arrays["note"])) | changes
        note.pop(gone, None)
        arrays["note"] = np.array(json.dumps(note))

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.update({"masks/fc.weight": np.ones((3, 4), bool)}), "not fit the model: .'masks/fc.weight'"),
        (lambda a: a.update(loss=np.zeros(99)), "'loss' and 'seconds' must be equally long"),
        (lambda a: a.update(loss=a["loss"].astype(str)), r"'loss' and 'seconds' .* of float64, got \(6,\) of <U"),
        (lambda a: a.update(seconds=a["seconds"].astype(complex)), "'loss' and 'seconds' .* of float64"),
        (lambda a: a.update(loss=a["loss"][:, None], seconds=a["seconds"][:, None]), "must be equally long"),
        *[(renote(name), f"'note' is damaged: KeyError.'{name}'") for name in ("optimizer", "steps", "seed", "plan")],
        (lambda a: a.update(note=np.array("[" * 10**5)), "'note' is damaged: RecursionError"),
        *((lambda a, note=note: a.update(note=np.array(note)), "'note' is damaged") for note in ("{", "[]")),
        (renote(format=2), "format 2, where this version reads 1"),
        (renote(optimizer={"kind": "SGD"}), "with the optimizer {'kind': 'SGD'}, this trainer has {'kind': 'Ad"),
        *((renote(steps=steps), "'note' is damaged: .*steps must") for steps in (True, -1, 10**400)),
        *((renote(epoch=1, position=p), "'note' is damaged: .*must be") for p in (-3, 22, 1.5)),
        *((renote(epoch=1, seed=seed), "'note' is damaged: .*seed must") for seed in ("x", None, -1)),
        *((renote(plan=plan), "'note' is damaged") for plan in ({}, [3], {"num_samples": 22, "batch_size": "4"})),
        *((renote(forward=f), "'note' is damaged: .*forward must") for f in ([-1.0, 0], [None, -1], [float("inf"), 0])),
    ],
)
def test_load_takes_all_or_nothing(change, message, tmp_path):
    path, trainer = tmp_path / "saved.npz", new_trainer()
    fit(trainer, epochs=1)
    trainer.save(path)
    rewrite(path, change)
    before = state(trainer)
    with pytest.raises(ValueError, match=f"saved.npz.*{message}"):
        trainer.load(path)
    assert_same(state(trainer), before)


def test_load_refuses_other_files(tmp_path):
    trainer, path = new_trainer(), tmp_path / "saved.npz"
    with pytest.raises(FileNotFoundError):
        trainer.load(path)
    trainer.save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("loss.txt", "much")
    with pytest.raises(ValueError, match="not an .npz file written by Trainer.save: 'loss.txt' is no array"):
        trainer.load(path)
    trainer.save(path)
    with pytest.raises(ValueError, match="'params/weight_ih_l0' must have shape"):
        Trainer(RNN(1, 5, 3), Adam(lr=0.01)).load(path)
    with pytest.raises(ValueError, match="this trainer has .*'lr': 0.02"):
        new_trainer(Adam(lr=0.02)).load(path)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("masks/fc.weight"), r"masks must be a dict with the entries .* got \['conv.weight'\]"),
        (lambda a: a["params/fc.weight"].fill(1), r"params\['fc.weight'\] must be zero where masks prune it"),
    ],
)
@pytest.mark.parametrize("new", [picture_trainer, pruned_trainer])
def test_masks_are_loaded_with_all_or_nothing(new, change, message, tmp_path):
    path, trainer = tmp_path / "saved.npz", new()
    pruned_trainer().save(path)
    rewrite(path, change)
    before, masks = state(trainer), trainer.model.masks
    with pytest.raises(ValueError, match=rf"saved.npz has masks that do not fit the model: .*{message}"):
        trainer.load(path)
    assert_same(state(trainer), before)
    assert (trainer.model.masks is None) == (masks is None)
    assert_same(trainer.model.masks or {}, masks or {})


def test_arrays_of_a_file_are_taken_row_by_row(tmp_path):
    path, trainer = tmp_path / "saved.npz", new_trainer()
    trainer.save(path)
    rewrite(path, lambda a: a.update({"params/fc.weight": np.asfortranarray(a["params/fc.weight"])}))
    trainer.load(path)
    assert trainer.model.params["fc.weight"].flags.c_contiguous


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda t: t.model.params["fc.bias"].fill(np.nan), "'params/fc.bias' must be finite"),
        (lambda t: t.optimizer.state["exp_avg_sq"]["fc.bias"].fill(np.inf), "'exp_avg_sq/fc.bias' must be finite"),
        (lambda t: t.optimizer.state["exp_avg"].pop("fc.bias"), "has no entry 'exp_avg/fc.bias'"),
        (lambda t: t.optimizer.state["exp_avg"].update(more=np.ones(2)), "do not fit the model: .'exp_avg/more'"),
        (lambda t: t.model.params.update({"fc.bias": np.array([{}] * 3)}), "must have shape|Python objects"),
        (lambda t: setattr(t.optimizer, "lr", float("nan")), "not JSON compliant"),
        (lambda t: setattr(t.optimizer, "lr", 1j), "JSON holds"),
        (lambda t: setattr(t.optimizer, "steps", -1), "'note' is damaged"),
        (lambda t: setattr(t, "position", 99), "'note' is damaged"),
        (lambda t: t._loss.append(np.inf), "must be|'loss'"),
        (lambda t: t.model.params["fc.weight"].fill(1), "must be zero where masks prune it"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(spoil, message, tmp_path):
    path, trainer = tmp_path / "saved.npz", pruned_trainer() if "masks" in message else new_trainer()
    fit(trainer, 1, Pictures() if "masks" in message else DATA)
    trainer.save(path)
    kept = path.read_bytes()
    spoil(trainer)
    with pytest.raises((TypeError, ValueError), match=f"nothing was saved, for it could not be loaded: .*({message})"):
        trainer.save(path)
    assert path.read_bytes() == kept


def test_settings_of_other_types_are_saved_as_they_are(tmp_path):
    path, trainer = tmp_path / "saved.npz", new_trainer()
    trainer.optimizer.lr, trainer.optimizer.betas = np.float32(0.5), (0.9, 0.999)
    trainer.save(path)
    new_trainer(Adam(lr=0.5)).load(path)


def test_fit_finds_an_unwritable_path_before_training(tmp_path):
    trainer = new_trainer()
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        fit(trainer, save_to=tmp_path, save_every=1000)
    assert not trainer.history.loss.size


def test_ctrl_c_waits_for_a_save(tmp_path, monkeypatch, foreground):
    from bppsa_nb.machine import files

    path, trainer = tmp_path / "saved.npz", new_trainer()
    fsync = files.os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda number: (signal.raise_signal(signal.SIGINT), fsync(number)))
    with pytest.raises(KeyboardInterrupt):
        trainer.save(path)
    new_trainer().load(path)
