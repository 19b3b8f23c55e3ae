"""Images in prompts: embeddings in place of some tokens', at positions whose three axes differ. No vision tower runs
for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from repro.cases.case import Case, Setup
from repro.cases.layout import Ints
from repro.cases.payload import integers
from repro.cases.rows.serving import brings_image
from repro.cases.sharing import share_of
from runners.releases.options.mrope import AXES

# Rows and columns of an image, in tokens.
_SHAPES = ((1, 2), (2, 2), (2, 3), (3, 2), (2, 5))
# Tokens before one, at most. Few, so that prompts of the same data have it in common.
_BEFORE_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """first: the place of its first token in the prompt. embeddings: of the model's type, on the host, [rows * columns,
    hidden]."""

    first: int
    rows: int
    columns: int
    embeddings: torch.Tensor

    def positions(self, length: int) -> torch.Tensor:
        """The positions of a text's tokens, [length, axes]: an image has one time, and text goes on behind its larger
        side."""
        places = torch.arange(length)
        behind = places - (self.first + self.rows * self.columns)
        inside = (places >= self.first) & (behind < 0)
        place = (places - self.first) * inside
        axes = torch.stack((torch.zeros_like(place), place // self.columns, place % self.columns), dim=1)
        text = torch.where(behind >= 0, places + self.delta, places)
        return torch.where(inside[:, None], self.first + axes, text[:, None].expand(-1, AXES))

    @property
    def delta(self) -> int:
        """The distance of text behind it from its place."""
        return max(self.rows, self.columns) - self.rows * self.columns

    def stand_in(self, prompt: Ints, vocabulary: int) -> None:
        """Write into a prompt what stands for the image: the vocabulary's last token, of which sglang gives the
        log-probability where it has numbers beyond it (schedule_batch.py, 0.5.13:2076, 0.5.23:3054)."""
        prompt[self.first : self.first + self.rows * self.columns] = vocabulary - 1

    def brought(self, prompt: list[int]) -> Any:
        """The image as a request of this prompt brings it. sglang changes and keeps it, so that each needs its own."""
        batches: Any = importlib.import_module("sglang.srt.managers.schedule_batch")
        last = self.first + self.rows * self.columns - 1
        item = batches.MultimodalDataItem(
            modality=batches.Modality.IMAGE,
            offsets=[(self.first, last)],
            format=batches.MultimodalInputFormat.PRECOMPUTED_EMBEDDING,
            precomputed_embeddings=self.embeddings.clone(),
        )
        return batches.MultimodalProcessorOutput(
            mm_items=[item],
            input_ids=prompt,
            im_token_id=prompt[self.first],
            mrope_positions=self.positions(len(prompt)).T.contiguous(),
            mrope_position_delta=torch.tensor([[self.delta]]),
        )


# By step and row of a case.
Images = Mapping[tuple[int, int], Image]


def images_of(case: Case, table: torch.Tensor) -> Images:
    """The images of a case's requests. A prompt without room for its image has none. table: the model's embeddings."""
    images = {
        (number, row): _image(case.setup, request.data, request.seq_len, table)
        for number, step in enumerate(case.steps)
        for row, request in enumerate(step.requests)
        if brings_image(case.setup, row)
    }
    return {place: image for place, image in images.items() if image is not None}


def _image(setup: Setup, data: int, length: int, table: torch.Tensor) -> Image | None:
    """Embeddings of tokens, turned around: as large as those, and none of them."""
    first, shape = integers(data, "image", (2,), _BEFORE_MAX * len(_SHAPES)).tolist()
    rows, columns = _SHAPES[shape % len(_SHAPES)]
    tokens = integers(data, "image tokens", (rows * columns,), share_of(setup).vocab_size)
    first = first % (_BEFORE_MAX + 1)
    if first + rows * columns >= length:
        return None
    embeddings = table[torch.from_numpy(tokens).to(table.device)].flip(-1).cpu()
    return Image(first=first, rows=rows, columns=columns, embeddings=embeddings)
