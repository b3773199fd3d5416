/** Goes on with an incomplete turn where its card is: by the notebook's kernel, else by the server. */

import { type Api, NOT_YOURS, Refused } from "./api";
import type { Kernel } from "./kernel";
import { DRAWN_REQUEST, RESUME_REQUEST, sendOnControl } from "./send";
import { type Bundle, TURN_MIME } from "./watch";

/** A kernel that has loaded nb_agents answers sooner, whatever cell runs. */
const LOADED_MS = 1500;

export interface Incomplete {
  /** As its bundle has it: from the notebook's folder on, or whole. */
  readonly path: string;
  /** As the server calls it. */
  readonly id: string;
}

/** Of the reply, as nb_agents/jupyter/in_place.py makes it. */
interface Reply {
  readonly content?: { readonly bundle?: Bundle; readonly refusal?: string; readonly is_not_yours?: boolean };
}

/**
 * Go on with a turn.
 *
 * @returns The bundle of the turn that goes on with it.
 * @throws Refused
 */
export async function resumeTurn(
  turn: Incomplete,
  kernel: Kernel | undefined,
  api: Pick<Api, "resume">,
  trust: boolean,
): Promise<Bundle> {
  if (kernel && (await hasLoaded(kernel))) return byKernel(turn, kernel, trust);
  const { id } = await api.resume(turn.id, trust);
  const path = [...turn.path.split(/[\\/]/).slice(0, -1), id.split("/").at(-1)].join("/");
  const said = `Resumed: ${path}`;
  return { [TURN_MIME]: { path, state: "running" }, "text/html": `<p>${escaped(said)}</p>`, "text/plain": said };
}

async function byKernel({ path }: Incomplete, kernel: Kernel, trust: boolean): Promise<Bundle> {
  const reply = (await sendOnControl(kernel, RESUME_REQUEST, { turn: path, trust })) as Reply | undefined;
  const { bundle, refusal, is_not_yours } = reply?.content ?? {};
  if (bundle) return bundle;
  throw new Refused(refusal ?? "The kernel went away.", { cause: is_not_yours ? NOT_YOURS : 0 });
}

/** Whether a kernel knows our requests: one that doesn't never replies. */
async function hasLoaded(kernel: Kernel): Promise<boolean> {
  const late = new Promise<undefined>((resolve) => setTimeout(resolve, LOADED_MS));
  const asked = sendOnControl(kernel, DRAWN_REQUEST, { shown: "" }).catch(() => undefined);
  return (await Promise.race([asked, late])) !== undefined;
}

function escaped(text: string): string {
  const node = document.createElement("span");
  node.textContent = text;
  return node.innerHTML;
}
