"""Sealing of what workers write: messages, episodes, summaries, each bound to its place."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import orjson

from afterword.schemas import EpisodeClosed, EpisodeMessage, MessageCreated, SummaryCreated
from afterword.schemas.episodes import EpisodeMetrics, OpenedEpisode, metrics, user_of
from afterword.streams.redaction.records import IDS, NOT_TEXT
from afterword.streams.sealing.codec import Cipher, UserKey, as_text, from_text, key_ids, place_of_text
from afterword.streams.stores.user_keys import KeyOwner

OPEN = (IDS - {"user_id"}) | NOT_TEXT | {"sent_at", "changed"}
"""Fields of a message that stay readable. Every other one that an episode carries is sealed, a new one too."""
SEALED_FIELDS = tuple(name for name in EpisodeMessage.model_fields if name not in OPEN)
BLANK = {"user_id": ""} | {
    name: EpisodeMessage.model_fields[name].get_default()
    for name in SEALED_FIELDS
    if not EpisodeMessage.model_fields[name].is_required()
}
"""Values of these fields in a sealed message, whose content is the sealed text."""
SUMMARY_TEXTS = ("title", "short_summary", "long_summary", "rolling_summary")

M = TypeVar("M", EpisodeMessage, MessageCreated)
MessagePlace = tuple[str | None, str]
"""Tenant and conversation of a message."""


class Keys(Protocol):
    """Keys at hand. All raise KeysNeeded."""

    def current(self, owners: Iterable[KeyOwner]) -> list[UserKey]: ...
    def known(self, key_ids: Iterable[bytes]) -> list[UserKey] | None: ...


class Sealing:
    """Seals, where it is on, and opens. `is_on`: what is written is to be sealed.

    All methods raise KeysNeeded, and those that open SealBroken.
    """

    def __init__(self, keys: Keys, *, is_on: bool) -> None:
        self._keys = keys
        self.is_on = is_on

    def message(self, message: M, place: MessagePlace) -> M:
        """Seal a message under the key of its user."""
        [key] = self._keys.current([KeyOwner(place[0], message.user_id)])
        secret = orjson.dumps({name: getattr(message, name) for name in SEALED_FIELDS})
        sealed = key.cipher.seal(secret, place_of_text("message", *place, message.id))
        return message.model_copy(update={**BLANK, "content": as_text(sealed)})

    def opened_message(self, sealed: EpisodeMessage, place: MessagePlace) -> EpisodeMessage | None:
        """Open a sealed message; None if its key was destroyed."""
        text = from_text(sealed.content)
        keys = self._keys.known(key_ids(text))
        if keys is None:
            return None
        cipher = keys[0].cipher if len(keys) == 1 else Cipher(keys)
        found = orjson.loads(cipher.open(text, place_of_text("message", *place, sealed.id)))
        return sealed.model_copy(update={name: _frozen(value) for name, value in found.items() if name not in OPEN})

    def readable_message(self, sealed: EpisodeMessage, place: MessagePlace) -> EpisodeMessage:
        """Open a sealed message; an empty one if its key was destroyed: then it was deleted."""
        return self.opened_message(sealed, place) or sealed.model_copy(update={**BLANK, "content": ""})

    def opened(self, event: EpisodeClosed) -> OpenedEpisode:
        """Open a sealed episode; its fingerprint stays that of the sealed contents."""
        place = event.tenant_id, event.conversation_id
        unreadable: set[str] = set()

        def read(sealed: EpisodeMessage) -> EpisodeMessage:
            message = self.opened_message(sealed, place)
            if message is None:
                unreadable.add(sealed.id)
            return message or self.readable_message(sealed, place)

        core, overlap = tuple(map(read, event.messages)), tuple(map(read, event.overlap))
        living = [message for message in core if message.id not in unreadable] or core
        fields: dict[str, Any] = {"messages": core, "overlap": overlap, "user_id": user_of(living)}
        fields |= {"metrics": metrics(living), "sealed": False, "unreadable": frozenset(unreadable)}
        kept: dict[str, Any] = {name: getattr(event, name) for name in EpisodeClosed.model_fields}
        return OpenedEpisode.model_construct(**kept | fields)

    def summary(self, summary: SummaryCreated, users: Iterable[str]) -> SummaryCreated:
        """Seal a summary under the keys of all these users: destroying any one of them makes it unreadable.

        `users`: everybody whose words may be in its texts.
        """
        owners = [KeyOwner(summary.tenant_id, user) for user in sorted({*users, summary.user_id})]
        cipher = Cipher(self._keys.current(owners))
        secret = {
            **{name: getattr(summary, name) for name in (*SUMMARY_TEXTS, "user_id")},
            "unsupported": summary.quality.unsupported,
            "metrics": summary.metrics.model_dump(),
        }
        sealed = cipher.seal(orjson.dumps(secret), _place_of(summary))
        return summary.model_copy(
            update={
                **dict.fromkeys((*SUMMARY_TEXTS, "user_id"), ""),
                "quality": summary.quality.model_copy(update={"unsupported": ()}),
                "metrics": EpisodeMetrics(),
                "sealed_texts": as_text(sealed),
            }
        )

    def opened_summary(self, event: SummaryCreated) -> SummaryCreated | None:
        """Open a summary; None if the key of one of its users was destroyed."""
        if event.sealed_texts is None:
            return event
        text = from_text(event.sealed_texts)
        keys = self._keys.known(key_ids(text))
        if keys is None:
            return None
        found: dict[str, Any] = orjson.loads(Cipher(keys).open(text, _place_of(event)))
        unsupported, numbers = found.pop("unsupported"), found.pop("metrics")
        quality = event.quality.model_copy(update={"unsupported": tuple(unsupported)})
        measured = EpisodeMetrics.model_construct(**{name: _frozen(value) for name, value in numbers.items()})
        return event.model_copy(update={**found, "quality": quality, "metrics": measured, "sealed_texts": None})


def _place_of(summary: SummaryCreated) -> bytes:
    return place_of_text("summary", summary.tenant_id, summary.conversation_id, summary.event_id)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
