"""Answers of a model that try to make a page send requests to a server."""

from __future__ import annotations

import base64
from typing import Any

from nb_agents import events as ev
from tests.kit.cards import card_bundle
from tests.kit.sweeps import FIRST_ROWS, SweepFold, sweep_bundle
from tests.kit.views import fold

__all__ = ["bundle", "bundles", "recipes_and_sweeps", "texts"]

_IMAGES = (
    "![x](URL)",
    '![x](URL "title")',
    "![x](<URL>)",
    "![x][r]\n\n[r]: URL",
    "![r][]\n\n[r]: URL",
    "![r]\n\n[r]: URL",
    "[![x](URL)](URL)",
    "| a |\n|---|\n| ![x](URL) |",
    "- ![x](URL)",
    "> ![x](URL)",
    "# ![x](URL)",
    "![a ![b](URL) c](URL)",
    "~~![x](URL)~~ **![x](URL)**",
    r"!\[x](URL)",
    "![x](//HOST/a.png)",
    "![x](URL#plot.png)",
    "![x](plot.png)![x](../../../../URL)",
    "![`x`](URL)",
    "![$x$](URL)",
    '![$" src="URL$](x)',
    '[a](http://b "$" style="background:url(URL)$")',
    '![x](x "$"><img src=URL>$")',
)
_HTML = (
    "<img src=URL>",
    "<IMG SRC='URL'>",
    "<img srcset='URL 2x'>",
    "<picture><source srcset=URL><img></picture>",
    "<video poster=URL src=URL></video>",
    "<audio src=URL autoplay></audio>",
    "<iframe src=URL></iframe>",
    "<iframe srcdoc='<img src=URL>'></iframe>",
    "<object data=URL></object>",
    "<embed src=URL>",
    "<link rel=stylesheet href=URL>",
    "<link rel=prefetch href=URL>",
    "<link rel=preconnect href=URL>",
    "<script src=URL></script>",
    "<script>fetch('URL')</script>",
    "<style>@import 'URL';</style>",
    "<style>body{background:url(URL)}</style>",
    "<style>@font-face{font-family:x;src:url(URL)}p{font-family:x}</style>",
    "<p style='background:url(URL)'>x</p>",
    "<p style=\"background:u\\72l('URL')\">x</p>",
    "<p style='background-image:image-set(\"URL\" 1x)'>x</p>",
    "<table background=URL><tr><td background=URL>x</table>",
    "<input type=image src=URL>",
    "<body background=URL>",
    "<meta http-equiv=refresh content='0;url=URL'>",
    "<base href=URL>\n\n![x](a.png)",
    "<a href=URL ping=URL>x</a>",
    "<form action=URL><button autofocus>x</button></form>",
    "<img src=x onerror=\"fetch('URL')\">",
    "<details open ontoggle=\"fetch('URL')\">x</details>",
    "<svg><image href=URL /></svg>",
    "<svg><use href='URL#a'/></svg>",
    "<svg><style>@import url(URL);</style></svg>",
    "<svg><foreignObject><img src=URL></foreignObject></svg>",
    "<svg onload=\"fetch('URL')\"></svg>",
    "<svg><filter id=f><feImage href=URL /></filter></svg>",
    "<math><mi style='background:url(URL)'>x</mi></math>",
    "<math><mtext><img src=URL></mtext></math>",
    "<div><![CDATA[<img src=URL>]]></div>",
    "<!-- --><img src=URL><!-- -->",
    "<noscript><p title='</noscript><img src=URL>'></noscript>",
    "<template><img src=URL></template><xmp><img src=URL></xmp>",
    "a <span\nstyle='background:url(URL)'>b</span>",
    "    <img src=URL>\n\n<img src=URL>",
    "```html\n<img src=URL>\n",
    '<button data-commandlinker-command="help:open" data-commandlinker-args="{}">x</button>',
)
_MATH = (
    r"$\href{URL}{x}$",
    r"$\style{background:url(URL)}{x}$",
    r"$$\class{x}{\style{background-image:url('URL')}{y}}$$",
    r"\(\style{background:url(URL)}{x}\)",
    r"\[\includegraphics{URL}\]",
    r"$\url{URL}$",
    r"$\require{html}\style{background:url(URL)}{x}$",
    r"$\def\x{\style{background:url(URL)}{z}}\x$",
    r"$\csname style\endcsname{background:url(URL)}{x}$",
    r"$\mmlToken{mi}[style='background:url(URL)']{x}$",
    r"$\bbox[background:url(URL)]{x}$",
    r"$\unicode[x;background:url(URL)]{65}$",
    r"\begin{align}\style{background:url(URL)}{x} &= 1\end{align}",
    r"$x < <img src=URL> y$",
    r"$\text{<img src=URL>}$",
    r"$\color{url(URL)}{x}$",
)
_DIAGRAMS = (
    'flowchart LR\n A-->B\n click A href "URL"',
    'flowchart LR\n A@{ img: "URL", w: 60, h: 60 }',
    "flowchart LR\n A-->B\n style A fill:url(URL)",
    "flowchart LR\n A-->B\n classDef x background:url(URL)\n class A x",
    'flowchart LR\n A["<img src=URL>"]-->B',
    'flowchart LR\n A["#60;img src=URL#62;"]-->B',
    "%%{init: {'themeCSS': '@import url(URL);'}}%%\nflowchart LR\n A-->B",
    "---\nconfig:\n  themeCSS: '@import url(URL);'\n---\nflowchart LR\n A-->B",
    "%%{init: {'fontFamily': 'x;background:url(URL)'}}%%\nflowchart LR\n A-->B",
    'C4Context\n Person(a, "x", $sprite="URL")',
    'sequenceDiagram\n participant A\n links A: {"x": "URL"}\n A->>A: <img src=\'URL\'>',
    'flowchart LR\n A["`![x](URL)`"]',
    'classDiagram\n class A\n link A "URL"\n callback A "fetch(\'URL\')"',
    "flowchart LR\n A-->B\n linkStyle 0 stroke:url(URL)",
    'flowchart LR\n A["$$\\includegraphics{URL}$$"]',
)
_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg"><image href="URL"/><style>@import "URL";</style></svg>'
)
_OTHERS = (
    "<URL>",
    "URL",
    "[x](URL)",
    "[x](javascript:fetch('URL'))",
    "[x](data:text/html,<img src=URL>)",
    "[x]: URL\n\n[x]",
    "![x](data:text/html,<img/src=URL>)",
    "DATA",
)


def texts(url: str) -> list[str]:
    """Return the answers, which all name this address."""
    svg = base64.b64encode(_SVG.replace("URL", url).encode()).decode()
    data = f"![x](data:image/svg+xml;base64,{svg})"
    diagrams = [f"```mermaid\n{each}\n```" for each in _DIAGRAMS]
    host = url.split("/")[2]
    every = [*_IMAGES, *_HTML, *_MATH, *diagrams, *_OTHERS]
    return [each.replace("DATA", data).replace("URL", url).replace("HOST", host) for each in every]


def bundles(url: str) -> list[dict[str, Any]]:
    """Return a card of each; its task, agents and reasons say it, too."""
    return [bundle(nth, each) for nth, each in enumerate(texts(url))]


def bundle(nth: int, words: str) -> dict[str, Any]:
    """Return the card of a turn with this answer, as it is in a notebook."""
    told: list[ev.Event] = [
        ev.TurnStarted(
            session=f"s{nth}",
            turn=1,
            task=words,
            agents=(ev.AgentInfo(id="ada", model="m"), ev.AgentInfo(id="ben", model="m")),
            timeout_s=9,
        ),
        ev.AnswerGiven(agent="ada", answer=f"{words}\n\nFirst."),
        ev.VoteCast(agent="ben", target="ada", reason=words, seen={"ada": 1}),
        ev.TurnEnded(status="completed", phase="presenting", answer=words, winner="ada"),
    ]
    return card_bundle(fold(told), f".nb_agents/sessions/s{nth}/turn_1")


def recipes_and_sweeps(url: str) -> list[dict[str, Any]]:
    """Return cards that have them all as outputs of recipes, and as answers of a sweep's rows."""
    every, made = texts(url), []
    for first in range(0, len(every), FIRST_ROWS):
        some = every[first : first + FIRST_ROWS]
        outputs = {f"{words[:20]} {nth}": words for nth, words in enumerate(some)}
        ended = ev.TurnEnded(status="completed", phase="presenting", outputs=outputs)
        begun = ev.TurnStarted(
            session="s", turn=1, task=some[0], agents=(), timeout_s=9, recipe="paper"
        )
        made.append(card_bundle(fold([begun, ended]), f".nb_agents/sessions/r{first}/turn_1"))
        of_row = {"status": "completed", "error": None, "tokens": 1, "cost": 0.0, "score": None}
        table = [{"row": words[:20], "answer": words, **of_row} for words in some]
        view = SweepFold(rows=len(some)).view(f"sweep_{first}", (), 1.0, died_at=1.0)
        made.append(sweep_bundle(view, some[0], f"sweeps/sweep_{first}", table))
    return made
