// Steps of a program: each prints its name and its value, or what went wrong.
'use strict'

const text = (key, value) => (typeof value === 'bigint' ? String(value) : value)

exports.server = {
  host: process.env.PGHOST,
  port: Number(process.env.PGPORT),
  user: process.env.PGUSER,
  database: process.env.PGDATABASE,
  options: process.env.PGOPTIONS || '',
}
// The first schema of the server.
exports.schema = process.env.PEERS_SERVER === 'ducktail' ? 'main' : 'public'

exports.step = async (name, work) => {
  let told
  try {
    const value = await work()
    told = value === undefined ? 'done' : JSON.stringify(value, text)
  } catch (error) {
    const cause = error.cause || error.parent || error
    told = `error ${cause.code || error.name}: ${String(cause.message).split('\n')[0]}`
  }
  console.log(`${name}\t${told}`)
}

// A step whose value is the library's own, and says nothing.
exports.doing = (name, work) =>
  exports.step(name, async () => {
    await work()
  })
