"""What Figures 3 and 10 call the operators of VGG-11."""

from bppsa_nb.sparse import VGG11


def operators():
    """Name the operators that the scan covers, from the image on: "conv1", "relu1", "pool1" ..."""
    words, numbers, names = {"Conv2d": "conv", "ReLU": "relu", "MaxPool2d": "pool"}, {}, []
    for operator in VGG11().linked(from_input=True):
        word = words[type(operator).__name__]
        numbers[word] = numbers.get(word, 0) + 1
        names.append(f"{word}{numbers[word]}")
    return names
