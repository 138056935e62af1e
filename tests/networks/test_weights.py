import numpy as np
import pytest

from bppsa_nb.machine.files import CorruptFileError
from bppsa_nb.sparse import LeNet5, load_weights, masks_of, prune, save_weights


@pytest.mark.parametrize("in_columns", [False, True])
def test_weights_go_to_a_file_and_back(in_columns, tmp_path):
    model, other, path = LeNet5(rng=1), LeNet5(rng=2), tmp_path / "folder" / "weights"
    save_weights(model, path)
    assert [entry.name for entry in path.parent.iterdir()] == ["weights"]
    if in_columns:
        with path.open("wb") as file:
            np.savez(file, **{name: np.asfortranarray(param) for name, param in model.params.items()})
    other.params["fc3.weight"].flags.writeable = False  # arrays are replaced, not written to
    load_weights(other, path)
    for name, param in model.params.items():
        np.testing.assert_array_equal(other.params[name], param)
        assert other.params[name].flags.writeable and other.params[name].flags.c_contiguous
    with np.load(path, allow_pickle=False) as file:
        assert set(file.files) == set(model.params)


@pytest.mark.peers
def test_weights_are_pytorchs(tmp_path):
    import torch

    module = torch.nn.ModuleDict({"conv1": torch.nn.Conv2d(3, 6, 5), "conv2": torch.nn.Conv2d(6, 16, 5)})
    for i, (inputs, outputs) in enumerate([(400, 120), (120, 84), (84, 10)], start=1):
        module[f"fc{i}"] = torch.nn.Linear(inputs, outputs)
    np.savez(tmp_path / "weights.npz", **{name: p.numpy() for name, p in module.state_dict().items()})
    model = LeNet5()
    load_weights(model, tmp_path / "weights.npz")
    module.load_state_dict({name: torch.from_numpy(param) for name, param in model.params.items()})  # and back


def test_files_of_something_else_are_refused(tmp_path):
    np.savez(tmp_path / "weights.npz", **LeNet5().params, more=np.zeros(1))
    with pytest.raises(ValueError, match=r"entries that do not fit the model: \['more'\]"):
        load_weights(LeNet5(), tmp_path / "weights.npz")
    np.save(tmp_path / "weights.npy", np.zeros(3))
    message = "weights.npy is not an .npz file written by save_weights: it is no archive of arrays"
    with pytest.raises(CorruptFileError, match=message):
        load_weights(LeNet5(), tmp_path / "weights.npy")


def test_weights_that_could_not_be_loaded_are_not_saved(tmp_path):
    model, path = LeNet5(), tmp_path / "weights.npz"
    save_weights(model, path)
    kept, name = path.read_bytes(), next(iter(model.params))
    model.params[name][0] = np.inf
    with pytest.raises(ValueError, match=f"model.params: '{name}' must be finite"):
        save_weights(model, path)
    assert path.read_bytes() == kept


def test_pruned_weights_in_a_file(tmp_path):
    pruned, path = LeNet5(rng=1), tmp_path / "weights.npz"
    pruned.masks = prune(pruned.params, 0.8)
    save_weights(pruned, path)
    model = LeNet5(rng=2)
    load_weights(model, path)
    assert model.masks is None
    model.masks = masks_of(model.params)
    for name, mask in pruned.masks.items():
        np.testing.assert_array_equal(model.masks[name], mask)
    load_weights(model, path)  # zero where the masks prune
    save_weights(LeNet5(rng=3), path)
    with pytest.raises(ValueError, match="'conv1.weight' must be zero where the model's masks prune it"):
        load_weights(model, path)
    np.testing.assert_array_equal(model.params["fc3.weight"], pruned.params["fc3.weight"])
