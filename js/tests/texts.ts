/** Finds the texts in the sources that a user sees but that can't be translated. */

import ts from "typescript";

/** A text that does not go through `trans`, or that does so in a wrong way. */
export interface Finding {
  readonly file: string;
  readonly line: number;
  /** The text, in which "{}" stands for values. */
  readonly text: string;
  readonly problem: "not translated" | "translated before the language is known" | "not a literal";
}

/** Two words, a capitalised word, or the end of a sentence. */
const SENTENCE = /[\p{L}\d{}] [\p{L}\d{(“]|^\p{Lu}\p{Ll}|\p{L}[.…?!]$/u;
const WORD = /\p{L}{2}/u;

/** Properties, attributes and functions that show a text. */
const SHOWN_PROPERTY = /^(?:textContent|innerText|title|label|caption|placeholder|okLabel|body)$/;
const SHOWN_ATTRIBUTE = /^(?:title|placeholder|label|aria-(?:label|description|valuetext|roledescription))$/;
const SHOWS = /^(?:setText|setTextOrHide|report|this\.report|Notification\.\w+|Text|Refused|(?:\w+\.)?(?:append|prepend|replaceChildren))$/;

/** Places whose texts nobody sees. */
const HIDDEN_PROPERTY = /^(?:className|class|focusNodeSelector|id|rel)$/;
const HIDES =
  /^(?:console\.\w+|setClass|(?:\w+\.)*(?:addClass|classList\.\w+|closest|querySelector(?:All)?|matches|startsWith|endsWith|includes|split|indexOf|addEventListener|dispatchEvent))$/;

/** Find all in one source. */
export function findTexts(file: string, text: string): Finding[] {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true);
  const found: Finding[] = [];
  const report = (node: ts.Node, of: string, problem: Finding["problem"]): void => {
    const line = source.getLineAndCharacterOfPosition(node.getStart()).line + 1;
    found.push({ file, line, text: of, problem });
  };
  const visit = (node: ts.Node): void => {
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node) || ts.isTypeNode(node)) return;
    if (ts.isCallExpression(node) && /^trans\.(?:__|_n)$/.test(node.expression.getText())) {
      const count = node.expression.getText() === "trans._n" ? 2 : 1;
      if (!isInFunction(node)) report(node, textOf(node.arguments[0]) ?? "", "translated before the language is known");
      for (const each of node.arguments.slice(0, count))
        if (!ts.isStringLiteral(each)) report(each, textOf(each) ?? each.getText(), "not a literal");
      for (const each of node.arguments.slice(count)) visit(each);
      return;
    }
    const literal = textOf(node);
    if (literal !== undefined && isVisible(node, literal)) report(node, literal, "not translated");
    ts.forEachChild(node, visit);
  };
  visit(source);
  return found;
}

function textOf(node: ts.Node | undefined): string | undefined {
  if (!node) return undefined;
  if (ts.isStringLiteralLike(node)) return node.text;
  if (!ts.isTemplateExpression(node)) return undefined;
  return [node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)].join("{}");
}

function isInFunction(node: ts.Node): boolean {
  for (let each = node.parent; each; each = each.parent) {
    if (ts.isFunctionLike(each)) return true;
    if (ts.isPropertyDeclaration(each)) return !each.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.StaticKeyword);
  }
  return false;
}

function isVisible(literal: ts.Node, text: string): boolean {
  if (!WORD.test(text)) return false;
  const place = placeOf(literal);
  return place === "shown" || (place === "unknown" && SENTENCE.test(text));
}

/** Follow a value to the place where it is used. */
function placeOf(literal: ts.Node): "shown" | "hidden" | "unknown" {
  let node = literal;
  let isLabel = true; // an object's property shows its text only if it is the whole value
  while (isPassedOn(node)) {
    node = node.parent;
    isLabel &&= !ts.isTemplateSpan(node);
  }
  const { parent } = node;
  if (ts.isBinaryExpression(parent)) return placeInBinary(node, parent);
  if (ts.isCaseClause(parent) || ts.isElementAccessExpression(parent)) return "hidden";
  if (ts.isPropertyAssignment(parent)) {
    if (parent.name === node) return "hidden";
    return byName(parent.name.getText().replaceAll('"', ""), isLabel);
  }
  if (ts.isCallExpression(parent) || ts.isNewExpression(parent)) return placeInCall(node, parent);
  return "unknown";
}

/** Whether the value of the parent contains that of the node. */
function isPassedOn(node: ts.Node): boolean {
  const { parent } = node;
  if (ts.isParenthesizedExpression(parent) || ts.isTemplateSpan(parent) || ts.isTemplateExpression(parent)) return true;
  if (ts.isConditionalExpression(parent)) return parent.condition.pos !== node.pos;
  if (ts.isPropertyAccessExpression(parent)) return ts.isCallExpression(parent.parent) && parent.name.text === "trim";
  if (ts.isCallExpression(parent)) return parent.expression.pos === node.pos && /\.trim$/.test(parent.expression.getText());
  return ts.isBinaryExpression(parent) && /^(?:\+|\?\?|\|\|)$/.test(parent.operatorToken.getText());
}

function placeInBinary(node: ts.Node, { left, operatorToken }: ts.BinaryExpression): "shown" | "hidden" | "unknown" {
  const operator = operatorToken.getText();
  if (/^[!=]==?$/.test(operator) || operator === "in") return "hidden";
  if (operator !== "=" || node === left || !ts.isPropertyAccessExpression(left)) return "unknown";
  return byName(left.name.text, true);
}

function byName(name: string, isLabel: boolean): "shown" | "hidden" | "unknown" {
  if (HIDDEN_PROPERTY.test(name)) return "hidden";
  return isLabel && SHOWN_PROPERTY.test(name) ? "shown" : "unknown";
}

function placeInCall(node: ts.Node, call: ts.CallExpression | ts.NewExpression): "shown" | "hidden" | "unknown" {
  const name = call.expression.getText();
  const args: readonly ts.Expression[] = call.arguments ?? [];
  const at = args.indexOf(node as ts.Expression);
  if (HIDES.test(name)) return "hidden";
  if (/^(?:make|text)$/.test(name) && at < 2) return "hidden"; // tag and class
  if (/(?:^|\.)set(?:Attr|Attribute)$/.test(name)) {
    const attribute = args[at - 1];
    return attribute && SHOWN_ATTRIBUTE.test(textOf(attribute) ?? "") ? "shown" : "hidden";
  }
  return SHOWS.test(name) ? "shown" : "unknown";
}
