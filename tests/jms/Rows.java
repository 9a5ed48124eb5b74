import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Objects;
import org.apache.qpid.jms.JmsConnectionFactory;

/** The rows of docs/reference/jms.md with Apache Qpid JMS: prints a line for each, and asks for help by lines with "?". */
public final class Rows {
  private static final long WAIT_MS = 30_000;
  private static String url;
  private static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));

  private interface Row {
    void run() throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    url = arguments[0];
    row("retained first", Rows::retainedFirst);
    row("non-durable", Rows::nonDurable);
    row("durable", Rows::durable);
    row("interrupted", Rows::interrupted);
    row("types", Rows::types);
    row("other types", Rows::otherTypes);
    row("queue", Rows::queue);
    row("empty", Rows::empty);
    row("cleared by MQTT", Rows::clearedByMqtt);
    row("expiry", Rows::expiry);
    row("noLocal", Rows::noLocal);
    row("selector", Rows::selector);
    row("names", Rows::names);
    row("client id", Rows::clientId);
    row("password", Rows::password);
    System.exit(0);
  }

  private static void row(String name, Row row) {
    try {
      row.run();
      System.out.println("ok " + name);
    } catch (Throwable error) {
      System.out.println("FAILED " + name + ": " + error);
      error.printStackTrace();
    }
  }

  private static void retainedFirst() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      Topic topic = session.createTopic("rows/first");
      publish(session, topic, session.createTextMessage("old"), 1);
      MessageConsumer consumer = session.createConsumer(topic);
      expect(consumer, "old", 1);
      publish(session, topic, session.createTextMessage("new"), 1);
      expect(consumer, "new", 0);
      publish(session, topic, session.createTextMessage("not kept"), 0);
      expect(consumer, "not kept", 0);
      expect(session.createConsumer(topic), "new", 1);
    }
  }

  private static void nonDurable() throws Exception {
    for (int time = 0; time < 2; time++) {
      try (Connection connection = open(null)) {
        Session session = session(connection);
        Topic topic = session.createTopic("rows/first");
        expect(session.createConsumer(topic), "new", 1);
      }
    }
  }

  private static void durable() throws Exception {
    try (Connection publisher = open(null)) {
      Session outside = session(publisher);
      Topic topic = outside.createTopic("rows/durable");
      publish(outside, topic, outside.createTextMessage("old"), 1);
      try (Connection connection = open("durable")) {
        Session session = session(connection);
        expect(session.createDurableSubscriber(topic, "sub"), "old", 1);
      }
      publish(outside, topic, outside.createTextMessage("meanwhile"), 1);
      try (Connection connection = open("durable")) {
        Session session = session(connection);
        MessageConsumer consumer = session.createDurableSubscriber(topic, "sub");
        expect(consumer, "meanwhile", 0);
        publish(outside, topic, outside.createTextMessage("now"), 1);
        expect(consumer, "now", 0);
        consumer.close();
        session.unsubscribe("sub");
        expect(session.createDurableSubscriber(topic, "sub"), "now", 1);
      }
      try (Connection connection = open("durable")) {
        session(connection).unsubscribe("sub");
      }
    }
  }

  private static void interrupted() throws Exception {
    try (Connection connection = open("interrupted", "?jms.prefetchPolicy.all=0")) {
      Session session = session(connection);
      for (int number = 0; number < 5; number++) {
        publish(session, session.createTopic("rows/many/" + number), session.createTextMessage("m"), 1);
      }
      expect(session.createDurableSubscriber(session.createTopic("rows/many/#"), "sub"), "m", 1);
    }
    try (Connection connection = open("interrupted")) {
      Session session = session(connection);
      MessageConsumer consumer = session.createDurableSubscriber(session.createTopic("rows/many/#"), "sub");
      for (int number = 1; number < 5; number++) {
        expect(consumer, "m", 1);
      }
      consumer.close();
      session.unsubscribe("sub");
    }
  }

  private static void types() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      Topic topic = session.createTopic("rows/types");
      MessageConsumer consumer = session.createConsumer(topic);
      publish(session, topic, session.createTextMessage("21 °C"), 1);
      Message text = consumer.receive(WAIT_MS);
      check(text instanceof TextMessage && ((TextMessage) text).getText().equals("21 °C"), "text");
      check(text.getJMSDestination().equals(topic), "destination " + text.getJMSDestination());
      BytesMessage octets = session.createBytesMessage();
      octets.writeBytes(new byte[] {1, 2, (byte) 255});
      publish(session, topic, octets, 0);
      Message received = consumer.receive(WAIT_MS);
      byte[] read = new byte[3];
      check(received instanceof BytesMessage && ((BytesMessage) received).readBytes(read) == 3 && read[2] == -1, "bytes");
    }
  }

  private static void otherTypes() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      Topic topic = session.createTopic("rows/types");
      for (Message message :
          new Message[] {session.createMapMessage(), session.createStreamMessage(), session.createObjectMessage("x")}) {
        try {
          publish(session, topic, message, 1);
          throw new AssertionError("published " + message);
        } catch (JMSException refused) {
          check(refused.getMessage().contains("use a BytesMessage or a TextMessage"), refused.getMessage());
        }
      }
      publish(session, topic, session.createTextMessage("goes on"), 1);
    }
  }

  private static void queue() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      MessageConsumer consumer = session.createConsumer(session.createTopic("rows/queue"));
      publish(session, session.createQueue("rows/queue"), session.createTextMessage("1"), 1);
      expect(consumer, "1", 0);
      publish(session, session.createTopic("rows/queue"), session.createTextMessage("2"), 1);
      expect(consumer, "2", 0);
      expect(session.createConsumer(session.createTopic("rows/queue")), "2", 1);
    }
  }

  private static void empty() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      Topic topic = session.createTopic("rows/empty");
      publish(session, topic, session.createTextMessage("kept"), 1);
      for (Message message :
          new Message[] {
            session.createTextMessage(null), session.createTextMessage(""), session.createBytesMessage(), session.createMessage()
          }) {
        publish(session, topic, message, 1);
      }
      expect(session.createConsumer(topic), "kept", 1);
    }
  }

  private static void clearedByMqtt() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      ask("clear rows/empty");
      Topic topic = session.createTopic("rows/empty");
      MessageConsumer consumer = session.createConsumer(topic);
      publish(session, topic, session.createTextMessage("live"), 0);
      expect(consumer, "live", 0);
    }
  }

  private static void expiry() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      Topic topic = session.createTopic("rows/expiry");
      MessageProducer producer = session.createProducer(topic);
      producer.setTimeToLive(60_000);
      Message message = session.createTextMessage("short");
      message.setIntProperty("JMS_IBM_Retain", 1);
      producer.send(message);
      MessageConsumer before = session.createConsumer(topic);
      Message received = before.receive(WAIT_MS);
      check(received != null && received.getJMSExpiration() > 0, "no expiry: " + received);
      before.close();
      ask("advance 61");
      MessageConsumer after = session.createConsumer(topic);
      publish(session, topic, session.createTextMessage("live"), 0);
      expect(after, "live", 0);
    }
  }

  private static void noLocal() throws Exception {
    try (Connection connection = open(null);
        Connection other = open(null)) {
      Session session = session(connection);
      Session another = session(other);
      Topic topic = session.createTopic("rows/local");
      publish(session, topic, session.createTextMessage("earlier"), 1);
      MessageConsumer consumer = session.createConsumer(topic, null, true);
      expect(consumer, "earlier", 1);
      publish(session, topic, session.createTextMessage("own"), 1);
      publish(another, topic, another.createTextMessage("another's"), 0);
      expect(consumer, "another's", 0);
    }
  }

  private static void selector() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      session.createConsumer(session.createTopic("rows/a"), "colour = 'red'");
      throw new AssertionError("a selector was taken");
    } catch (JMSException refused) {
      check(refused.getMessage().contains("selectors"), refused.getMessage());
    }
  }

  private static void names() throws Exception {
    try (Connection connection = open(null)) {
      Session session = session(connection);
      MessageConsumer consumer = session.createConsumer(session.createTopic("names/+/#"));
      publish(session, session.createTopic("names/a.b/c"), session.createTextMessage("1"), 0);
      publish(session, session.createTopic("names.a.b"), session.createTextMessage("other"), 0);
      publish(session, session.createTopic("names/a/b/c"), session.createTextMessage("2"), 0);
      expect(consumer, "1", 0);
      expect(consumer, "2", 0);
    }
  }

  private static void clientId() throws Exception {
    try (Connection first = open("alone")) {
      try (Connection second = open("alone")) {
        throw new AssertionError("taken twice");
      } catch (InvalidClientIDException expected) {
        check(first.getClientID().equals("alone"), "client id");
      }
    }
  }

  private static void password() throws Exception {
    JmsConnectionFactory factory = new JmsConnectionFactory(url);
    try (Connection connection = factory.createConnection("alice", "wrong")) {
      connection.start();
      throw new AssertionError("let in");
    } catch (JMSSecurityException expected) {
      return;
    }
  }

  private static Connection open(String clientId) throws JMSException {
    return open(clientId, "");
  }

  private static Connection open(String clientId, String options) throws JMSException {
    Connection connection = new JmsConnectionFactory(url + options).createConnection("alice", "wonder");
    if (clientId != null) {
      connection.setClientID(clientId);
    }
    connection.start();
    return connection;
  }

  private static Session session(Connection connection) throws JMSException {
    return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
  }

  private static void publish(Session session, Destination topic, Message message, int retain) throws JMSException {
    message.setIntProperty("JMS_IBM_Retain", retain);
    try (MessageProducer producer = session.createProducer(topic)) {
      producer.send(message);
    }
  }

  private static void expect(MessageConsumer consumer, String text, int retain) throws JMSException {
    Message message = consumer.receive(WAIT_MS);
    check(message instanceof TextMessage, "wanted " + text + ", got " + message);
    String got = ((TextMessage) message).getText() + " " + message.getIntProperty("JMS_IBM_Retain");
    check(Objects.equals(got, text + " " + retain), "wanted " + text + " " + retain + ", got " + got);
  }

  private static void ask(String wish) throws Exception {
    System.out.println("? " + wish);
    System.out.flush();
    check("done".equals(ANSWERS.readLine()), "no answer to " + wish);
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new AssertionError(what);
    }
  }
}
