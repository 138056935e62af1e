import json
import zipfile

import numpy as np
import pytest
from texts import beside
from trainers import DATA, Pictures, assert_same, fit, new_trainer, picture_trainer, pruned_trainer, state

from bppsa_nb import RNN, Adam, Trainer

TABLES = beside(__file__)


def rewrite(path, change):
    """Change a file's arrays, a, as a text says."""
    with np.load(path) as file:
        arrays = dict(file)
    exec(change, globals() | {"a": arrays})
    np.savez(path, **arrays)


def renote(arrays, gone=None, **changes):
    note = json.loads(str(arrays["note"])) | changes
    note.pop(gone, None)
    arrays["note"] = np.array(json.dumps(note))


@pytest.mark.parametrize("change, message", TABLES["arrays"])
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


@pytest.mark.parametrize("change, message", TABLES["masks"])
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
    rewrite(path, 'a.update({"params/fc.weight": np.asfortranarray(a["params/fc.weight"])})')
    trainer.load(path)
    assert trainer.model.params["fc.weight"].flags.c_contiguous


@pytest.mark.parametrize("spoil, message", TABLES["trainers"])
def test_what_could_not_be_loaded_is_not_saved(spoil, message, tmp_path):
    path, trainer = tmp_path / "saved.npz", pruned_trainer() if "masks" in message else new_trainer()
    fit(trainer, 1, Pictures() if "masks" in message else DATA)
    trainer.save(path)
    kept = path.read_bytes()
    exec(spoil, globals() | {"t": trainer})
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
