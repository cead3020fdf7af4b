"""The line in front of the event loop."""

import asyncio
import itertools

from serving.turnstile import Turnstile


def test_a_crowd_passes_in_order_and_leaves_turns_to_others():
    turnstile, passed, seen = Turnstile(at_once=3), [], []

    async def visitor(number):
        await turnstile.enter()
        passed.append(number)

    async def probe():
        while len(passed) < 30:
            seen.append(len(passed))
            await asyncio.sleep(0)

    async def crowd():
        await asyncio.gather(*(visitor(number) for number in range(30)), probe())

    asyncio.run(crowd())
    assert passed == list(range(30))
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 6  # never more than two turns' worth
    assert len(seen) >= 5


def test_whoever_leaves_the_line_holds_nobody_up():
    turnstile, passed = Turnstile(at_once=1), []

    async def visitor(number):
        await turnstile.enter()
        passed.append(number)

    async def crowd():
        visitors = [asyncio.create_task(visitor(number)) for number in range(6)]
        await asyncio.sleep(0)
        for left in visitors[2:4]:
            left.cancel()
        await asyncio.gather(*visitors, return_exceptions=True)
        await asyncio.wait_for(visitor(6), 1)  # and the line is empty again

    asyncio.run(crowd())
    assert passed == [0, 1, 4, 5, 6]
