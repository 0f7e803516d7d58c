"""Features are what the head is given, image by image, and the head is the layer that gives the logits."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.core.predict import check_head, predict_features
from ray_adaplr.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 1), dtype=np.uint8)
EVERYTHING = np.arange(12)


class Network(nn.Module):
    """A network of a user's own; `how` its parts go together is for each test to say."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.body, self.out = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU()), nn.Linear(6, 3)
        if how in ("hidden", "hidden, cooled"):
            self.out, self.fc = nn.Linear(5, 3), nn.Linear(6, 5)
        elif how == "hidden, of the right width":
            self.out, self.fc = nn.Linear(3, 3), nn.Linear(6, 3)
        elif how == "unused":
            self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        if self.how.startswith("hidden"):
            return self.out(self.fc(features).relu()) / (2 if self.how == "hidden, cooled" else 1)
        if self.how == "mirrored":
            return (self.out(features) + self.out(self.body(x.flip(3)))) / 2
        return self.out(features) / (2 if self.how == "cooled" else 1)


def classifier(how: str, head: str | None = None) -> Classifier:
    width = 5 if how in ("hidden", "hidden, cooled") and not head else 3
    return Classifier(Network(how), ModelSpec(num_classes=width, channels=1, head=head))


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index]


def test_features_are_of_the_image_in_their_row_and_a_head_that_runs_twice_gives_none() -> None:
    model = classifier("usual")
    features, _ = predict_features(model, read, EVERYTHING, batch_size=5)
    torch.testing.assert_close(features, model.network.body(torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 255))
    with pytest.raises(InputError, match=r"'out', which was .* of digit_cnn, does not get a row .* name .* with head="):
        predict_features(classifier("mirrored"), read, EVERYTHING, batch_size=5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "unused",
            "'fc', which was taken for the head of digit_cnn, does not give its logits, 'out' does: in Python, say",
        ),
        ("hidden", "'out' does: in Python, say head='out'"),
        ("hidden, of the right width", "'out' does"),
        ("hidden, cooled", "'fc', .*, has 5 outputs for 3 logits; name the final"),
    ],
)
def test_a_layer_that_does_not_give_the_logits_is_not_taken_for_the_head(how: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_head(classifier(how), IMAGES[:2])
    check_head(classifier(how, head="out"), IMAGES[:2])


@pytest.mark.parametrize("how", ["usual", "cooled", "mirrored"])
def test_a_head_whose_output_is_divided_by_a_temperature_or_averaged_is_a_head(how: str) -> None:
    check_head(classifier(how), IMAGES[:2])
