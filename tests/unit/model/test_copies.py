"""Copies: what can be changed is another object, and what cannot is the same one."""

from dataclasses import dataclass, field

import msgspec

from millrace.model.copies import own_copy


class Frozen(msgspec.Struct, frozen=True):
    name: str
    size: int | None = None


class Holder(msgspec.Struct, frozen=True):
    inner: Frozen
    tags: list[str]


class Checked(msgspec.Struct):
    tags: list[str]

    def __post_init__(self) -> None:
        self.tags.append("made")


@dataclass
class Plain:
    tags: list[str] = field(default_factory=list)


def test_a_frozen_struct_of_scalars_is_not_copied() -> None:
    value = Frozen("tea", 1)

    assert own_copy(value) is value


class Link(msgspec.Struct, frozen=True):
    size: int
    above: "Link | None" = None


class Branch(msgspec.Struct, frozen=True):
    name: str
    leaf: "Leaf | None" = None


class Leaf(msgspec.Struct, frozen=True):
    tags: list[str]
    branch: Branch | None = None


def test_a_frozen_struct_may_hold_itself() -> None:
    value, held = Link(1, Link(2)), Leaf(["hot"], Branch("tea", Leaf([])))
    copied = own_copy(held)

    assert own_copy(value) is value
    assert copied == held
    assert copied.tags is not held.tags
    assert copied.branch.leaf.tags is not held.branch.leaf.tags
    assert own_copy(held.branch).leaf.tags is not held.branch.leaf.tags


def test_what_of_a_struct_can_be_changed_is_copied_and_the_rest_is_shared() -> None:
    value = Holder(Frozen("tea"), ["hot"])
    copied = own_copy(value)
    copied.tags.append("cold")

    assert value.tags == ["hot"]
    assert copied.inner is value.inner


def test_a_copy_runs_no_code_of_the_class() -> None:
    copied = own_copy(Checked([]))

    assert copied.tags == ["made"]


def test_a_dataclass_is_copied_with_what_it_has() -> None:
    value = Plain(["hot"])
    own_copy(value).tags.append("cold")

    assert value.tags == ["hot"]
