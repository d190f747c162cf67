"""A producer like aiokafka's, which can register what a transaction will have before there is any of it."""

from collections.abc import Iterable

from aiokafka import AIOKafkaProducer, TopicPartition


class RegisteringProducer(AIOKafkaProducer):
    """Producer that can register a transaction's parts ahead of what it sends."""

    async def register(self, partitions: Iterable[TopicPartition], group: str) -> None:
        """Tell the coordinator that the transaction will have records of these partitions, and offsets of the group.

        A commit would do so itself, one request after the other, and wait for each answer. A partition that gets no
        record is given the marker of the transaction's end all the same. Raises: KafkaError.
        """
        manager, sender = self._txn_manager, self._sender
        for partition in partitions:
            manager.maybe_add_partition_to_txn(partition)
        # returns False after an answer that may be another one a moment later
        while not await sender._do_add_offsets_to_txn(group):  # noqa: SLF001 – aiokafka is pinned exactly
            pass
        ended = manager.wait_for_transaction_end()
        if ended.done():
            ended.result()
