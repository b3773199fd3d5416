"""A kind of work: the team's first agent answers the prompts of a text file, in order."""

from collections.abc import Mapping
from typing import Any

from nb_agents.errors import ConfigError
from nb_agents.extend import Spec, StepsDriver, StepsKind, StepsWork, TurnResult


class Prompts(Spec):
    """A list of prompts."""

    prompts: tuple[str, ...]


class PromptsDriver(StepsDriver):
    """Has the prompts answered."""

    async def work(self) -> TurnResult:
        agent, answers = self.spec.team.agents[0], list[str]()
        for number, prompt in enumerate(self.spec.work.given["prompts"], 1):
            answers.append(await self.ask(f"prompt-{number}", agent, prompt))
        return TurnResult(answer=answers[-1], outputs={"answers": answers})


class PromptsKind(StepsKind[Prompts]):
    """Files with the line "# prompts", and a prompt in each line below it."""

    spec_class = Prompts
    driver_class = PromptsDriver

    def reads(self, text: str) -> bool:
        return text.startswith("# prompts\n")

    def parse(self, text: str) -> Prompts:
        prompts = tuple(filter(None, text.splitlines()[1:]))
        if not prompts:
            raise ConfigError("The file has no prompts. Write one in each line.")
        return Prompts(prompts=prompts)

    def work(self, spec: Prompts, given: Mapping[str, Any]) -> StepsWork:
        planned = {f"prompt-{n}": prompt for n, prompt in enumerate(spec.prompts, 1)}
        return StepsWork("acme_prompts", "prompts", {"prompts": [*spec.prompts]}, planned)


PROMPTS = PromptsKind()
