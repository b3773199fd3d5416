/** Draws answers as JupyterLab draws Markdown: with its parser, its colours, its diagrams and its MathJax. */

import { type IRenderMimeRegistry, MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { type Files, prepare, sanitize, withoutMath } from "./harmless";

type Options = Pick<IRenderMime.IRendererOptions, "markdownParser" | "translator">;

/**
 * Return an answer as the front end draws it, not yet in a document; nothing where it has no such renderer.
 *
 * Math is typeset by `typeset`, or by JupyterLab when it attaches a widget around it.
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
    resolver: null, // it would ask the server where links lead
    linkHandler: null,
    latexTypesetter: rendermime.latexTypesetter,
    markdownParser: { render: async (source) => withoutMath(await parser.render(source)) },
    ...(translator ? { translator } : {}),
  });
  // Not trusted: it is sanitised in any case.
  await renderer.renderModel(new MimeModel({ data: { "text/markdown": prepare(markdown) }, trusted: false }));
  return renderer.node;
}

/** Have MathJax draw the formulas of what is in the document. */
export function typeset({ latexTypesetter }: IRenderMimeRegistry, node: HTMLElement): void {
  void latexTypesetter?.typeset(node);
}
