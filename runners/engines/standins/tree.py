"""sgl_kernel's functions that make trees of drafts in plain torch, for machines that cannot load them."""

from __future__ import annotations

import torch

from runners.engines.launch_memory import report

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int = FULL_MASK,
) -> None:
    """Write, for each request, the tree of the selected drafts behind its verified tokens.

    A token attends to itself, to its ancestors and to what is verified. tree_mask: those bits; only the part about
    the tree's own tokens is written, the caller has filled the rest. Children of a node are linked by
    retrieve_next_token (its first child) and retrieve_next_sibling.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} has no stand-in")
    start = 0
    for row, length in enumerate(verified_seq_len.tolist()):
        selected = _row("selected_index", selected_index, row, draft_token_num - 1)
        parents = _parents(selected, _row("parent_list", parent_list, row, topk * (depth - 1) + 1), topk)
        before = length if tree_mask_mode == FULL_MASK else 0
        size = draft_token_num * (before + draft_token_num)
        block = _block(tree_mask, start, size)
        among_drafts = block.view(draft_token_num, before + draft_token_num)[:, before:]
        among_drafts.zero_()
        among_drafts[:, 0] = 1
        for token in range(draft_token_num):
            line = _ancestors(parents, token)
            among_drafts[token, line] = 1
            positions[row * draft_token_num + token] = length + len(line)
        tree_mask[start : start + size] = block[: max(0, len(tree_mask) - start)]
        start += size
        retrieve_index[row] = torch.arange(draft_token_num) + row * draft_token_num
        _link(parents, retrieve_next_token[row], retrieve_next_sibling[row])


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Write the positions of each request's tree and its links, with -1 for none. tree_mask: a bit for each token and
    each other one, set where it attends to that."""
    masks = tree_mask[: batch_size * draft_token_num**2].view(batch_size, draft_token_num, draft_token_num)
    retrieve_next_token[:batch_size], retrieve_next_sibling[:batch_size] = -1, -1
    for row, (mask, length) in enumerate(zip(masks.tolist(), verified_seq_len[:batch_size].tolist(), strict=True)):
        above = [[other for other in range(token) if mask[token][other]] for token in range(draft_token_num)]
        first = row * draft_token_num
        depths = torch.tensor([length + len(line) for line in above], dtype=positions.dtype)
        positions[first : first + draft_token_num] = depths
        retrieve_index[row] = torch.arange(draft_token_num) + first
        _link([max(line, default=-1) for line in above], retrieve_next_token[row], retrieve_next_sibling[row])


def _row(name: str, table: torch.Tensor, row: int, width: int) -> list[int]:
    """A row as the kernel finds it, which knows how wide rows have to be and not how wide they are."""
    entries: list[int] = table.reshape(-1)[row * width : (row + 1) * width].tolist()
    if len(entries) < width and table.numel():  # no rows at all: nothing but roots, whose parents are not looked up
        report(f"load outside {name} in build_tree_kernel_efficient", table.numel(), table.numel())
    return entries + [-1] * (width - len(entries))


def _block(tree_mask: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """A copy of one request's part of the mask. What lies behind the mask is somebody else's memory on a GPU."""
    block = tree_mask[start : start + size]
    if len(block) < size:
        report("store outside tree_mask in build_tree_kernel_efficient", len(tree_mask), len(tree_mask))
    return torch.cat((block, tree_mask.new_zeros(size - len(block))))


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """The parent of each token of the tree, the root included; -1 if it was not selected. selected: which
    candidate each token behind the root is; the topk candidates of one parent are neighbours, and parent_list says
    which candidate the parent was."""
    places = {candidate: place for place, candidate in reversed(list(enumerate(selected, start=1)))}
    families = (candidate // topk for candidate in selected)
    return [0, *(places.get(parent_list[family], -1) if family else 0 for family in families)]


def _ancestors(parents: list[int], token: int) -> list[int]:
    """The token itself and those above it, the root left out."""
    line: list[int] = []
    while token > 0:
        line.append(token)
        token = parents[token]
    return line


def _link(parents: list[int], first_child: torch.Tensor, sibling: torch.Tensor) -> None:
    """Link the children of each node of a request's tree, the first child first."""
    for token in range(len(parents) - 1, 0, -1):
        parent = parents[token]
        if parent >= 0:
            sibling[token] = first_child[parent]
            first_child[parent] = token
