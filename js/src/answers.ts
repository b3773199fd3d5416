/** Renders answers with JupyterLab's Markdown parser, colours, diagrams and MathJax. */

import { type IRenderMimeRegistry, MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { type Files, prepare, sanitize, withoutMath } from "./sanitize";

type Options = Pick<IRenderMime.IRendererOptions, "markdownParser" | "translator">;

/**
 * Render an answer as the front end does, outside of a document. Undefined if it has no such renderer.
 *
 * Math is rendered by `typeset`, or by JupyterLab when it attaches a widget that contains the answer.
 */
export async function drawAnswer(
  rendermime: IRenderMimeRegistry,
  { markdownParser, translator }: Options,
  markdown: string,
  files: Files,
): Promise<HTMLElement | undefined> {
  const parser = markdownParser ?? rendermime.markdownParser;
  const factory = rendermime.getFactory("text/markdown");
  if (!parser || !factory) return undefined;
  const renderer = factory.createRenderer({
    mimeType: "text/markdown",
    sanitizer: { sanitize: (html) => sanitize(html, files) },
    resolver: null, // would send links to the server
    linkHandler: null,
    latexTypesetter: rendermime.latexTypesetter,
    markdownParser: { render: async (source) => withoutMath(await parser.render(source)) },
    ...(translator ? { translator } : {}),
  });
  // Not trusted, although it is sanitised anyway.
  await renderer.renderModel(new MimeModel({ data: { "text/markdown": prepare(markdown) }, trusted: false }));
  return renderer.node;
}

/** Let MathJax render the formulas of a node in the document. */
export function typeset({ latexTypesetter }: IRenderMimeRegistry, node: HTMLElement): void {
  void latexTypesetter?.typeset(node);
}
