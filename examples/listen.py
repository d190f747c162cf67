"""A service that listens to summaries: python examples/listen.py 127.0.0.1:9092"""

import asyncio
import sys
from contextlib import suppress

from afterword import SummarySubscriber


async def main(bootstrap_servers: str) -> None:
    async with SummarySubscriber(bootstrap_servers=bootstrap_servers, group_id="example") as events:
        async for event in events:
            # the event counts as processed, and its offset is committed, when the next one is requested
            sys.stdout.write(f"{event.episode_id}  {event.title}\n")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Ctrl-C ends it
        asyncio.run(main(sys.argv[1]))
