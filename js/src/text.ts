/**
 * The page's texts in the user's language. The extension sets the bundle when it is activated. Without one, as in
 * the widget's panel outside of JupyterLab, texts are English.
 *
 * In a text, `%1` is the first argument, and `%%` is a percent sign.
 */

/** The part of JupyterLab's `TranslationBundle` that is used. */
export interface Bundle {
  __(text: string, ...args: unknown[]): string;
  _n(one: string, many: string, count: number, ...args: unknown[]): string;
}

export const ENGLISH: Bundle = {
  __: fill,
  _n: (one, many, count, ...args) => fill(count === 1 ? one : many, count, ...args),
};

let bundle = ENGLISH;
let language = "en";

/** Use another language from now on. */
export function setBundle(next: Bundle, languageCode: string): void {
  bundle = next;
  language = canonical(languageCode.replaceAll("_", "-"));
}

function canonical(tag: string): string {
  try {
    return Intl.getCanonicalLocales(tag)[0] ?? "en";
  } catch {
    return "en"; // an unknown code, or an empty one
  }
}

/** The language as a BCP 47 tag, for times. */
export function languageTag(): string {
  return language;
}

/** Named as in JupyterLab, so that its tools find the texts. */
export const trans: Bundle = {
  __: (text, ...args) => bundle.__(text, ...args),
  /** @param count Chooses the form, and is `%1`. */
  _n: (one, many, count, ...args) => bundle._n(one, many, count, ...args),
};

function fill(text: string, ...args: unknown[]): string {
  return text.replace(/%(%|\d+)/g, (_, which: string) => (which === "%" ? "%" : String(args[Number(which) - 1] ?? "")));
}
